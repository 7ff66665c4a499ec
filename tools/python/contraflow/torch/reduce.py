"""The gradients of the stages at the end of a step: scaled, and summed over all that hold a copy."""

from __future__ import annotations

from typing import AbstractSet, Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import torch

import contraflow as cf

from . import program as plans
from . import sharded
from .stage import Stage

BUCKET = 100 * 2**20  # bytes that are summed at once, and stand beside the gradients


def spread_parameters(module: torch.nn.Module) -> Set[torch.nn.Parameter]:
    """The parameters of a module that are not the same in an expert group: `expert_parameters()` of layers, and
    those with the attribute `expert`."""
    found = {p for p in module.parameters() if getattr(p, "expert", False)}
    part: Any
    for part in module.modules():
        if hasattr(part, "expert_parameters"):
            found.update(part.expert_parameters())
    return found


def tied_ranks(plan: cf.Plan, stages: Mapping[int, torch.nn.Module]) -> Dict[Tuple[int, ...], List[Tuple[int, str]]]:
    """Returns the parameters that are also those of stages on other ranks (`tied_parameters` of a module: {name: all
    (stage, name) that are one}), by the ranks that hold any of them: [(stage, name)] of this rank."""
    held = plans.holders(plan)
    found: Dict[Tuple[int, ...], List[Tuple[int, str]]] = {}
    for s, module in sorted(stages.items()):
        for name, places in getattr(module, "tied_parameters", {}).items():
            ranks = tuple(sorted({rank for stage, _ in places for rank in held[stage]}))
            found.setdefault(ranks, []).append((s, name))
    return found


class GradientSum:
    """The sum of one stage, or of what stages of several ranks have in common (None). `group` has all holders and their
    replicas, and the other processes of the expert group; None where that is one process. The parameters `spread`
    over that group are summed over `of_spread`, which is without it. The sum is divided by `divisor`. Of a sharded
    stage the average over its mesh is summed. `hook(stage, module)` then does what else has to be done over
    replicas."""

    def __init__(self, stage: Optional[Stage], group: Any, divisor: int,
                 hook: Optional[Callable[[int, torch.nn.Module], Any]] = None,
                 spread: AbstractSet[torch.Tensor] = frozenset(), of_spread: Any = None) -> None:
        self._stage: Any = stage
        self._group, self._divisor, self._hook = group, divisor, hook
        self._spread, self._of_spread = spread, of_spread
        self._weights: Sequence[torch.Tensor] = []
        self._before: List[Tuple[torch.Tensor, Any]] = []
        # Sums under way: the work, its buffer, the part of it for each weight, and those without a gradient here.
        self._going: List[Tuple[Any, torch.Tensor, List[Tuple[torch.Tensor, torch.Tensor]], List[int]]] = []

    def begin(self, weights: Sequence[torch.Tensor]) -> None:
        """Before a step: `weights` are those to sum with the stage. Their present `.grad` is kept apart, for it is
        complete."""
        self._weights, self._before = weights, []
        if torch.is_grad_enabled():
            self._before = [(p, p.grad) for p in weights if p.grad is not None]
            for p, _ in self._before:
                p.grad = None

    def start(self) -> List[torch.Tensor]:
        """After the last weight gradient of the stage. Returns gradients of other lanes that are not needed any
        more (order.mark_lane)."""
        if self._stage is not None and self._stage.sharded:
            sharded.reduce(self._stage.module)
        alone: List[torch.Tensor] = []
        by_kind: Dict[Any, Tuple[Any, List[torch.Tensor]]] = {}
        foreign: List[torch.Tensor] = []
        for p in self._weights:
            group = self._of_spread if p in self._spread else self._group
            if group is not None:
                by_kind.setdefault((p in self._spread, p.dtype, p.device), (group, []))[1].append(p)
            elif p.grad is not None:
                alone.append(sharded.local(p.grad))
        if self._divisor != 1 and alone:
            torch._foreach_div_(alone, float(self._divisor))
        for group, every in by_kind.values():
            for params in _buckets(every):
                without = [k for k, p in enumerate(params) if p.grad is None]
                flat = torch.cat([*(sharded.local(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1)
                                    for p in params), _holders(params, without)])
                parts = _parts(params, flat)
                for p, part in parts:
                    if sharded.local(p) is p and p.is_contiguous():
                        if hasattr(p.grad, "lane"):
                            foreign.append(p.grad)
                        p.grad = part  # its memory before is free for the next bucket
                self._going.append((group.allreduce([flat]), flat, parts, without))
        if self._hook is not None:
            self._wait()
            self._hook(self._stage.number, self._stage.module)
        return foreign

    def finish(self) -> None:
        """Waits for the sum and adds it to what was in `.grad`."""
        self._wait()
        for p, before in self._before:
            if p.grad is not None:
                before.add_(p.grad)
            p.grad = before
        self._before = []

    def _wait(self) -> None:
        for work, flat, parts, without in self._going:
            work.wait()
            holders = flat[-len(parts):].tolist() if without else []
            if self._divisor != 1:
                flat.div_(float(self._divisor))
            for p, part in parts:
                if p.grad is None:
                    p.grad = torch.empty_like(p)
                grad = sharded.local(p.grad)
                if grad.data_ptr() != part.data_ptr():
                    grad.copy_(part)
            for k in without:
                if holders[k] == 0:  # nothing uses it, and optimizers leave alone what has no gradient
                    parts[k][0].grad = None
        self._going = []


def _buckets(weights: Sequence[torch.Tensor]) -> Iterator[List[torch.Tensor]]:
    """The weights in parts of at most BUCKET bytes, or of one weight."""
    bucket: List[torch.Tensor] = []
    size = 0
    for p in weights:
        count = sharded.local(p).numel() * p.element_size()
        if bucket and size + count > BUCKET:
            yield bucket
            bucket, size = [], 0
        bucket.append(p)
        size += count
    if bucket:
        yield bucket


def _holders(params: Sequence[torch.Tensor], without: Sequence[int]) -> torch.Tensor:
    """1 for each weight that has a gradient here, 0 for the others: the end of a bucket, whose sum counts holders."""
    own = sharded.local(params[0])
    ones = torch.ones(len(params), dtype=own.dtype, device=own.device)
    for k in without:
        ones[k] = 0
    return ones


def _parts(params: Sequence[torch.Tensor], flat: Any) -> List[Tuple[torch.Tensor, torch.Tensor]]:
    """Each weight with its part of a bucket."""
    own = [sharded.local(p) for p in params]
    sizes = [*(x.numel() for x in own), len(params)]
    return [(p, part.view(x.shape)) for p, x, part in zip(params, own, flat.split(sizes))]
