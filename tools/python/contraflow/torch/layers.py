"""Layers in parts, as plans of level component run them."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, Optional, Protocol, Tuple

import torch

from .island import Values, spread

# The parts of each kind of layer in their order, and the method of each.
PARTS = {"m": {"ATTN": "attention", "DISPATCH": "dispatch", "MLP": "experts", "COMBINE": "combine"},
         "d": {"ATTN": "attention", "MLP": "mlp"}, "p": {"ATTN": "attention"}}


class MoELayer(Protocol):
    """A layer in four parts, each of which takes what the one before it returned: a tensor, or a tuple of
    tensors and anything else. Tensors have gradients; other values pass as they are.

    attention(*x, **kwargs) -> (tokens, *kept)  norm, attention, router, shared experts. `tokens`, which may be
                                                a tuple, goes to dispatch, `kept` past the exchange to combine
    dispatch(*tokens) -> rows                   the all-to-all to the experts
    experts(*rows) -> rows
    combine(*rows, *kept) -> y                  the all-to-all back, and the sum with the residual

    A layer may have dispatch_backward(handle, *grads of rows) -> grads of its inputs: then dispatch returns
    (rows, handle), and autograd does not see it. So for combine_backward, where combine returns (y, handle).
    """

    def attention(self, *x: Any, **kwargs: Any) -> Any: ...
    def dispatch(self, *tokens: Any) -> Any: ...
    def experts(self, *rows: Any) -> Any: ...
    def combine(self, *values: Any) -> Any: ...


class DenseLayer(Protocol):
    """A layer in two parts: attention(*x, **kwargs) -> h, or a tuple; mlp(*h) -> y."""

    def attention(self, *x: Any, **kwargs: Any) -> Any: ...
    def mlp(self, *h: Any) -> Any: ...


def kind_of(layer: Any) -> str:
    """`m`, `d` or `p`, as in plans: an MoE, a dense or a plain layer."""
    return next((kind for kind in "md" if all(hasattr(layer, method) for method in PARTS[kind].values())), "p")


def part_of(layer: Any, kind: str, name: str, kwargs: Dict[str, Any]) -> Tuple[
        Callable[..., Any], Optional[Callable[..., Any]]]:
    """The function of a part, and the explicit backward that it has, or None. The keywords of step() go to
    `attention`, and to no plain module."""
    method = PARTS[kind][name]
    if method == "attention":
        return functools.partial(layer.attention, **kwargs) if hasattr(layer, "attention") else layer, None
    return getattr(layer, method), getattr(layer, f"{method}_backward", None)


class Layers(torch.nn.ModuleList):
    """The layers of a stage in one module, as plans of level comm run them."""

    def forward(self, *x: Any, **kwargs: Any) -> Any:
        values: Values = x
        for layer in self:
            kind, kept = kind_of(layer), ()
            for name in PARTS[kind]:
                function, explicit = part_of(layer, kind, name, kwargs)
                if name == "COMBINE":
                    values = (*values, *kept)
                values = spread(function(*values) if explicit is None else
                                _Explicit.apply(function, explicit, *values))
                if kind == "m" and name == "ATTN":
                    values, kept = spread(values[0]), values[1:]
        return values[0] if len(values) == 1 else values


class _Explicit(torch.autograd.Function):
    """A part with a backward of its own, as autograd sees it."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], explicit: Callable[..., Any], *inputs: Any) -> Any:
        ctx.explicit = explicit
        result, ctx.handle = function(*inputs)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (None, None, *spread(ctx.explicit(ctx.handle, *grads)))


def extra_layers(layers: Layers, kinds: str, first: bool, last: bool) -> Tuple[int, int]:
    """How many plain layers more than in the plan stand at the beginning and at the end of a stage; raises
    ValueError where others do not fit."""
    found = "".join(map(kind_of, layers))
    begin = len(found) - len(found.lstrip("p")) - (len(kinds) - len(kinds.lstrip("p"))) if first else 0
    begin = max(0, min(begin, len(found) - len(kinds)))
    end = len(found) - len(kinds) - begin
    if end < 0 or end > 0 and (not last or found[len(found) - end:].strip("p")):
        raise ValueError(f"it has {len(found)} layers ({found}), and {len(kinds)} in the plan ({kinds}; m is an MoE "
                         "layer, d a dense one, p a plain one): give one for each; plain ones more only before the "
                         "first and after the last layer of the model")
    for at, (kind, layer) in enumerate(zip(kinds, list(layers)[begin:])):
        if kind != "p" and kind_of(layer) != kind:
            raise ValueError(f"layer {at} is {'an MoE' if kind == 'm' else 'a dense'} layer in the plan and needs "
                             f"{', '.join(PARTS[kind].values())}; a {type(layer).__name__} has not all of them")
    return begin, end
