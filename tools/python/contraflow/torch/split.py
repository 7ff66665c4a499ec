"""The stages of a rank, cut from a model as the plan says."""

from __future__ import annotations

import bisect
import itertools
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple, Union

import torch
from torch import nn

import contraflow as cf

from . import program as plans
from .decoder import Decoder, InLayers, is_decoder

Place = Tuple[nn.Module, str]  # a module and the name of one of its own tensors


def split(model: nn.Module, plan: cf.Plan, rank: int, *, layers: Union[int, str, None] = None,
          expert_parallel: Any = None, capacity: Optional[int] = None,
          init: Optional[Callable[[nn.Module], object]] = None,
          device: Union[torch.device, str, None] = None) -> Dict[int, nn.Module]:
    """Returns {stage: module} of a rank, for PlanSchedule. Parameters and buffers keep the names that they have in the
    model, and are those of the model itself: nothing is copied, and what the rank does not hold is freed with it.

    model    a torch.nn.Sequential, or a decoder of the form that Hugging Face's have: `model.embed_tokens`,
             `model.layers`, `model.norm` and `lm_head`. The first stage takes token ids, the last returns logits;
             keywords such as attention_mask go to each
    plan     stages are of the layers of its costs (`plan.partition`), embedding and head among them or not;
             else of `layers`
    layers   for plans without layers, as `plan.layout` takes it (None: those of the model, evenly)
    expert_parallel, capacity
             for MoE layers, as `from_moe_block` takes them, which cuts the layers of a decoder in parts for plans of
             level component, and for others with `expert_parallel`
    init     for a model on the meta device: init(module) fills the parameters of a stage, which are allocated on
             `device` (None: as the model's own classes do, with other random numbers on each rank)
    device   where the stages go (None: they stay; from the meta device to the CPU)
    """
    cut: Union[_Sequential, Decoder]
    if isinstance(model, nn.Sequential):
        cut = _Sequential(model, plan, layers)
    elif is_decoder(model):
        cut = Decoder(model, plan, layers)
    else:
        raise TypeError(f"split takes a torch.nn.Sequential, or a decoder with model.embed_tokens, model.layers, "
                        f"model.norm and lm_head, and not a {type(model).__name__} with "
                        f"{', '.join(name for name, _ in model.named_children()) or 'no modules'}: make the stages "
                        "yourself, {stage: module}")
    in_parts = plan.level == "component" or expert_parallel is not None
    stages = {s: cut.layers(s, expert_parallel, capacity) if in_parts else cut.stage(s) for s in plan.stages_of(rank)}
    _tie(model, plan, stages, cut.stage_of)
    _materialise(stages, model, init, device)
    return stages


class _Sequential:
    """Cuts a torch.nn.Sequential, each of its modules a layer."""

    def __init__(self, model: nn.Sequential, plan: cf.Plan, layers: Union[int, str, None]) -> None:
        self._children = list(model.named_children())
        count = len(self._children)
        sizes = list(plan.partition)
        if sizes and sum(sizes) != count:
            raise ValueError(f"the plan is for {sum(sizes)} layers ({sizes}), and the model has {count} modules: "
                             "compile it with costs of this model")
        if not sizes:
            sizes = [stage.count("t") for stage in plan.layout(count if layers is None else layers)]
            if sum(sizes) != count:
                raise ValueError(f"layers={layers!r} is for {sum(sizes)}, and the model has {count} modules")
        self._ends = list(itertools.accumulate(sizes))  # by stage
        self._at = {name: bisect.bisect_right(self._ends, k) for k, (name, _) in enumerate(self._children)}

    def stage(self, number: int) -> _Stage:
        stage = _Stage()
        for name, module in self._children[self._ends[number - 1] if number else 0:self._ends[number]]:
            stage.add_module(name, module)
        return stage

    def layers(self, number: int, group: Any, capacity: Optional[int]) -> nn.Module:
        if group is not None or capacity is not None:
            raise ValueError("split cuts no experts of a torch.nn.Sequential: give it layers that have their own, and "
                             "leave out expert_parallel and capacity")
        return InLayers(self.stage(number), list(self.stage(number)))

    def stage_of(self, name: str) -> int:
        return self._at[name.split(".")[0]]


class _Stage(nn.Sequential):
    names_of_model = True  # for State

    def forward(self, *x: torch.Tensor) -> Any:
        y: Any = x[0] if len(x) == 1 else x
        for module in self:
            y = module(y)
        return y


def _tensors(module: nn.Module) -> Iterator[Tuple[str, Place, torch.Tensor]]:
    """Yields (name, place, tensor), also those that several places share."""
    for path, part in module.named_modules(remove_duplicate=False):
        for name, tensor in (*part._parameters.items(), *part._buffers.items()):
            if tensor is not None:
                yield f"{path}.{name}".lstrip("."), (part, name), tensor


def _tie(model: nn.Module, plan: cf.Plan, stages: Dict[int, nn.Module], stage_of: Callable[[str], int]) -> None:
    """Says to stages which of their parameters are also those of stages on other ranks."""
    holders = plans.holders(plan)
    uses: Dict[int, List[Tuple[int, str]]] = {}
    for name, (part, own), tensor in _tensors(model):
        if own in part._parameters:
            uses.setdefault(id(tensor), []).append((stage_of(name), name))
    for places in uses.values():
        if any(holders[s] != holders[places[0][0]] for s, _ in places):
            for s, name in places:
                if s in stages:
                    tied = stages[s].__dict__.setdefault("tied_parameters", {})
                    tied[name] = tuple(places)


def _init(model: nn.Module, part: nn.Module) -> bool:
    """Gives a part of a model the parameters of a new one; False where it cannot."""
    own: Optional[Callable[[nn.Module], None]] = getattr(model, "_init_weights", None)
    own = own or getattr(type(part), "reset_parameters", None)
    if own is not None:
        with torch.no_grad():
            own(part)
    return own is not None


def _materialise(stages: Dict[int, nn.Module], model: nn.Module,
                 init: Optional[Callable[[nn.Module], object]], device: Union[torch.device, str, None]) -> None:
    made: Dict[int, torch.Tensor] = {}  # of those that several places share, one
    for stage in stages.values():
        fresh: Set[nn.Module] = set()
        unsaved: Set[nn.Module] = set()
        for _, (part, name), tensor in list(_tensors(stage)):
            if tensor.is_meta:
                parameter = name in part._parameters
                if id(tensor) not in made:
                    empty = torch.empty_like(tensor, device=device or "cpu")
                    made[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if parameter else empty
                    fresh.add(part)
                    if not parameter and name in part._non_persistent_buffers_set:
                        unsaved.add(part)
                (part._parameters if parameter else part._buffers)[name] = made[id(tensor)]  # type: ignore[assignment]
        for name, part in list(stage.named_modules()):
            # Tables that no state dict has must be made here in any case.
            if part in (fresh if init is None else unsaved) and not _init(model, part):
                raise ValueError(f"{name} ({type(part).__name__}) of the model is on the meta device and has no "
                                 "reset_parameters: pass init=, or make its buffers outside of the meta device")
        if init is not None and fresh:
            init(stage)
        if device is not None:
            stage.to(device)
