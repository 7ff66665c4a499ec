"""Decoders of the form that Hugging Face's have, cut into stages.

A stage is the model itself with some of its layers, called with what the stage before it made in place of
embeddings. So masks, rotary tables, scaled logits and checkpoints are those of the model's own code.
"""

from __future__ import annotations

import bisect
import copy
import itertools
import sys
from typing import Any, Dict, Iterator, List, Optional, Union

import torch
from torch import nn

import contraflow as cf

from .layers import Layers
from .losses import add_loss
from .moe_blocks import Routed, from_moe_block


def is_decoder(model: nn.Module) -> bool:
    core = getattr(model, "model", None)
    return (isinstance(core, nn.Module) and isinstance(getattr(core, "layers", None), nn.ModuleList)
            and all(isinstance(getattr(core, name, None), nn.Module) for name in ("embed_tokens", "norm"))
            and isinstance(getattr(model, "lm_head", None), nn.Module))


class Decoder:
    """Cuts a decoder by the plan, see `split`."""

    def __init__(self, model: Any, plan: cf.Plan, layers: Union[int, str, None]) -> None:
        self._model = model
        known = ("model", "model.embed_tokens", "model.layers", "model.norm", "lm_head")
        other = next((name for name, _ in model.named_parameters()
                      if not name.startswith(tuple(f"{path}." for path in known[1:]))), None)
        if other is not None:
            raise ValueError(f"split knows only the parameters of model.embed_tokens, model.layers, model.norm and "
                             f"lm_head, and {type(model).__name__} has {other}: make the stages yourself")
        count = len(model.model.layers)
        layout = plan.layout() if plan.partition else plan.layout(count if layers is None else layers)
        if any(c not in "EtL" for stage in layout for c in stage) or sum(s.count("t") for s in layout) != count:
            raise ValueError(f"the plan is for the layers {'|'.join(layout)}, and the model has {count} "
                             "(t): compile it with costs of this model")
        if any("E" in stage for stage in layout[1:]) or any("L" in stage for stage in layout[:-1]):
            raise ValueError(f"the plan has the layers {'|'.join(layout)}: the embedding (E) must be in the first "
                             "stage and the head (L) in the last")
        self._ends = list(itertools.accumulate(stage.count("t") for stage in layout))  # by stage
        self._routed = _routed_layers(model.model)

    def stage(self, number: int) -> nn.Module:
        begin = self._ends[number - 1] if number else 0
        return self._stage(begin, self._ends[number] - begin, number == 0, number == len(self._ends) - 1)

    def layers(self, number: int, group: Any, capacity: Optional[int]) -> nn.Module:
        """Returns the stage in layers of parts, with the experts of this process, for plans of level component."""
        stage: Any = self.stage(number)
        layers = stage.model.layers
        keywords = _Keywords(stage.model, len(layers))
        routed = _balance_of(stage, keywords) if getattr(stage.config, "output_router_logits", False) else None
        blocks = [from_moe_block(layer, group, capacity, routed) for layer in layers]
        layers._modules.update(zip(layers._modules, blocks))
        made: List[Any] = [_Block(block, k, keywords) for k, block in enumerate(blocks)]
        if number == 0:
            made.insert(0, stage.model.embed_tokens)
        if number == len(self._ends) - 1:
            made.append(self._stage(self._ends[-1], 0, False, True))
        return InLayers(stage, made)

    def _stage(self, begin: int, count: int, first: bool, last: bool) -> nn.Module:
        model: Any = self._model
        core, stage = _copy(model.model), _copy(model)
        layers = _Layers(list(model.model.layers)[begin:begin + count], begin)
        core._modules["layers"], stage._modules["model"] = layers, core
        if not first:
            core._modules["embed_tokens"] = None
        if not last:
            core._modules["norm"], stage._modules["lm_head"] = nn.Identity(), None
        elif count == 0:
            core.norm.register_forward_pre_hook(lambda _, given: given if layers.entry is None else (layers.entry,))
        config = getattr(core, "config", None)
        if config is not None:
            core.__dict__["config"] = _config(config, begin, count)
        stage.__class__ = type(type(model).__name__, (_Stage, type(model)), {"__module__": type(model).__module__})
        stage.__dict__["_whole"] = {"first": first, "last": last, "routed": self._routed}
        made: nn.Module = stage
        return made

    def stage_of(self, name: str) -> int:
        if name.startswith("model.layers."):
            return bisect.bisect_right(self._ends, int(name.split(".")[2]))
        return 0 if name.startswith("model.embed_tokens.") else len(self._ends) - 1


class _Stage:
    """Comes before the class of the model."""

    names_of_model = True  # for State
    _whole: Dict[str, Any]
    model: Any
    config: Any

    def forward(self, x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        given = {"input_ids" if self._whole["first"] else "inputs_embeds": x, "use_cache": False, **kwargs}
        balanced = getattr(self.config, "output_router_logits", False)
        layers = self.model.layers
        if balanced:
            given["output_router_logits"] = len(layers) > 0
        layers.entry = None if self._whole["first"] else x
        try:
            made = super().forward(**given) if self._whole["last"] else self.model(**given)  # type: ignore[misc]
        finally:
            layers.entry = None
        y: torch.Tensor = made.logits if self._whole["last"] else made.last_hidden_state
        return self._balance(y, made.router_logits, kwargs.get("attention_mask")) if balanced and len(layers) else y

    def _balance(self, y: torch.Tensor, logits: Any, mask: Any) -> torch.Tensor:
        """Adds the loss that balances experts, for each layer its own."""
        model: Any = self
        loss_of = sys.modules[type(self).__module__].load_balancing_loss_func
        losses = [loss_of((of_layer,), model.num_experts, model.num_experts_per_tok, mask) for of_layer in logits]
        return add_loss(y, model.router_aux_loss_coef * sum(losses) / self._whole["routed"]) if losses else y


def _routed_layers(core: Any) -> int:
    """Returns how many layers have a router of which the model gives the logits."""
    recorder = getattr(core, "_can_record_outputs", {}).get("router_logits")
    router = getattr(recorder, "target_class", recorder)
    return sum(router is None or any(isinstance(part, router) for part in layer.modules()) for layer in core.layers)


class InLayers(Layers):
    """A stage as a list of its layers; its modules have the names that they have in the stage."""

    names_of_model = True

    def __init__(self, stage: nn.Module, layers: List[Any]) -> None:
        super().__init__()
        modules: Dict[str, Any] = stage._modules
        self._modules.update(modules)
        self._layers = layers

    def __iter__(self) -> Iterator[Any]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)


class _Block:
    """A layer in parts, whose attention gets from the keywords of step() what the model gives its layers."""

    def __init__(self, block: Any, number: int, keywords: _Keywords) -> None:
        self._block, self._number, self._keywords = block, number, keywords

    def attention(self, x: torch.Tensor, **kwargs: Any) -> Any:
        return self._block.attention(x, **self._keywords.of(self._number, x, kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._block, name)


class _Keywords:
    """Masks, positions and tables, as a model gives them to each of its layers."""

    def __init__(self, core: Any, count: int) -> None:
        self._core, self._count, self._last = _copy(core), count, None  # type: Any, int, Any
        self._core._modules.update(embed_tokens=None, norm=nn.Identity())
        self.mask: Any = None  # that of step(), of the last ones

    def of(self, number: int, x: torch.Tensor, kwargs: Dict[str, Any]) -> Dict[str, Any]:
        """Returns those of a layer of the stage. Layers of one micro-batch follow each other."""
        form = x.shape, x.dtype, x.device, torch.is_grad_enabled()
        known = self._last is not None and self._last[0] == form and self._last[1].keys() == kwargs.keys() and all(
            value is self._last[1][name] for name, value in kwargs.items())
        if not known:
            seen: List[Dict[str, Any]] = []
            self._core._modules["layers"] = _Record(self._count, seen)
            with torch.no_grad():
                self._core(inputs_embeds=x, use_cache=False, **kwargs)
            self._last = form, kwargs, seen
        self.mask = kwargs.get("attention_mask")
        given: Dict[str, Any] = self._last[2][number]
        return given


class _Record(nn.ModuleList):
    """Stands for `count` layers, and records their arguments."""

    def __init__(self, count: int, seen: List[Dict[str, Any]]) -> None:
        super().__init__()
        self._count, self._seen = count, seen

    def __iter__(self) -> Iterator[Any]:
        return iter([self._keep] * self._count)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def _keep(self, x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        self._seen.append(kwargs)
        return x


def _balance_of(stage: Any, keywords: _Keywords) -> Routed:
    def routed(logits: torch.Tensor, weights: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        balanced: torch.Tensor = stage._balance(weights, (logits,), keywords.mask)
        return balanced
    return routed


class _Layers(nn.ModuleList):
    """Some layers of a model, each under its number there. If `entry` is set the first one gets that: models
    may scale their embeddings."""

    def __init__(self, layers: Any, begin: int) -> None:
        super().__init__()
        self.entry: Optional[torch.Tensor] = None
        for k, layer in enumerate(layers):
            self.add_module(str(begin + k), layer)

    def __iter__(self) -> Iterator[Any]:
        layers: Any = list(self._modules.values())
        if self.entry is not None and layers:
            layers[0] = _Entry(layers[0], self.entry)
        return iter(layers)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


class _Entry:
    """A layer that is given another input. It is no module, so that a checkpointed layer keeps that input."""

    def __init__(self, layer: nn.Module, x: torch.Tensor) -> None:
        self._layer, self._x = layer, x

    def __call__(self, _: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return self._layer(self._x, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


def _copy(module: Any) -> Any:
    """Returns a module with the parameters and modules of another one, of which it may get others."""
    made = copy.copy(module)
    for name, value in module.__dict__.items():
        if name.startswith("_") and isinstance(value, (dict, set)):
            made.__dict__[name] = value.copy()
    return made


def _config(config: Any, begin: int, count: int) -> Any:
    """Returns the configuration of a model with these layers alone, which it counts from 0."""
    made = copy.copy(config)
    for name, value in (("num_hidden_layers", max(1, count)), ("layer_types", None)):
        if getattr(config, name, None) is not None:
            made.__dict__[name] = value or config.layer_types[begin:begin + max(1, count)]
    return made
