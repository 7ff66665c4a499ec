"""One part of one layer and one micro-batch: an island of autograd.

Its inputs are leaves and its outputs are roots, so that F, B and W of a part are what they are of a stage.
No graph reaches from one part into another: a lane never waits for another one inside autograd.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch

from .backward import backward_input, backward_weight, differentiable, root_of

Values = Tuple[Any, ...]
Grads = List[Optional[torch.Tensor]]


class Island:
    """F, B and W of a part.

    function        function(*inputs) -> a tensor, or a tuple of tensors and anything else
    explicit        instead of autograd: explicit(handle, *grads of the outputs) -> grads of the inputs, of a
                    function that returns (its result, handle)
    """

    __slots__ = ("inputs", "grads", "_function", "_explicit", "_handle", "_roots", "_left")

    def __init__(self, function: Callable[..., Any], explicit: Optional[Callable[..., Any]] = None):
        self._function, self._explicit = function, explicit
        self.inputs: Values = ()     # leaves that B and W read
        self.grads: Grads = []       # gradients of the outputs that W reads
        self._handle: Any = None
        self._roots: Optional[List[Any]] = None  # by output; None where it has no gradient
        self._left: Any = None

    def forward(self, inputs: Values) -> Values:
        """F or R: the outputs, as leaves of the parts that read them. Outputs that have a gradient require it."""
        self.inputs = inputs
        if self._explicit is not None:
            with torch.no_grad():
                result, self._handle = self._function(*inputs)
                return leaves_of(result)
        outputs = spread(self._function(*inputs))
        if torch.is_grad_enabled():
            self._roots = [root_of(y) if has_gradient(y) else None for y in outputs]
        return leaves_of(outputs)

    def backward(self, grads: Grads) -> Grads:
        """B: the gradients of the inputs, None where there is none. Keeps the values that W needs."""
        roots, self._roots = self._roots, None
        if self._explicit is not None:
            handle, self._handle = self._handle, None
            with torch.no_grad():
                result = spread(self._explicit(handle, *grads))
            if len(result) != len(self.inputs) or any(g is not None and g.shape != getattr(x, "shape", None)
                                                      for x, g in zip(self.inputs, result)):
                raise TypeError(f"a backward must return a gradient, or None, for each of {forms_of(self.inputs)}, "
                                f"returned {forms_of(result)}")
            return list(result)
        pairs = [(r, g) for r, g in zip(roots or (), grads) if r is not None and g is not None]
        leaves = [x for x in self.inputs if has_gradient(x)]
        if not pairs:
            return [None] * len(self.inputs)
        starts, given = [r for r, _ in pairs], [g for _, g in pairs]
        got, self._left = backward_input(starts, given, leaves)
        if self._left is not None:
            self.grads = grads
        rest = iter(got)
        return [next(rest) if has_gradient(x) else None for x in self.inputs]

    def weight(self, weights: Sequence[torch.Tensor]) -> None:
        """W: adds the gradients of the weights to their `.grad`."""
        left, self._left = self._left, None
        if left is not None:
            backward_weight(left, weights)


def spread(result: Any) -> Values:
    """A result as the values that the next part takes."""
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def has_gradient(value: Any) -> bool:
    return torch.is_tensor(value) and value.requires_grad


def forms_of(values: Values) -> str:
    """Shapes of tensors, and what else there is, in words."""
    return ", ".join(f"{list(y.shape)}" if torch.is_tensor(y) else f"{y!r:.80}" for y in values) or "nothing"


def leaves_of(result: Any) -> Values:
    """Values cut off from their graph. If there is no graph, each tensor that could have a gradient requires it."""
    known = has_gradient if torch.is_grad_enabled() else differentiable
    return tuple([y.detach().requires_grad_(known(y)) if torch.is_tensor(y) else y for y in spread(result)])
