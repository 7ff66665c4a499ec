"""Losses of a step: those of the last stage, and what any stage adds to them."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, List, Optional, Tuple

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from .local import AnyLinks


class Losses:
    """The losses of the last step of a rank."""

    def __init__(self, links: AnyLinks, device: torch.device, microbatches: int) -> None:
        self._links, self._device, self._microbatches = links, device, microbatches
        self._losses: Optional[List[torch.Tensor]] = None
        self.added: List[torch.Tensor] = []

    def begin(self) -> None:
        self.added = []
        current.set(self)

    def end(self, losses: List[torch.Tensor]) -> None:
        self._losses = losses
        current.set(None)

    def mean(self, added: bool) -> torch.Tensor:
        """Returns the mean over all micro-batches of the pipeline; NaN where these have no losses."""
        if self._losses is None:
            raise RuntimeError("there is no loss before the first step or eval")
        parts = self.added if added else self._losses
        total = torch.zeros(2, dtype=torch.float64, device=self._device)
        for loss in parts:
            total[0] += loss.to(total)
        total[1] = len(parts)
        self._links.combine(total, dist.ReduceOp.SUM)
        return (total[0] / (self._microbatches if added else total[1])).to(torch.get_default_dtype())


current: ContextVar[Optional[Losses]] = ContextVar("losses", default=None)  # of the step that runs in this thread


class _AddLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
        ctx.loss, ctx.losses = loss.detach(), current.get()
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        if ctx.losses is not None:  # a graph that is walked twice counts once
            ctx.losses.added.append(ctx.loss)
            ctx.losses = None
        return grad, torch.ones_like(ctx.loss)


def add_loss(x: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
    """Adds to the loss of a micro-batch another one that a module of any stage computes, such as that which
    balances the experts of a router. Returns `x`; what comes of it must go to the output of the stage. The
    gradients are those of the sum, divided by the number of micro-batches as others are."""
    if loss.numel() != 1:
        raise ValueError(f"add_loss takes a scalar loss, got a tensor of shape {list(loss.shape)}")
    return x if not loss.requires_grad else _AddLoss.apply(x, loss)
