"""The first step's look at copies: parameters that two holders of a stage have unlike, rows that both ends got."""

from __future__ import annotations

import math
import warnings
from typing import AbstractSet, Any, Dict, List, Sequence, Tuple

import torch
from torch.utils._pytree import tree_flatten

import contraflow as cf

from .sharded import is_sharded, local

CLOSE = 1e-9  # of the sum of absolute values: sums of the same numbers in another order
Sums = Tuple[float, float]


class Copies:
    """Compares sums over the store `of_all` pipelines that wait for each other, or `of_pipeline`; whoever comes later
    compares, so nobody waits. Parameters in `spread` are parts of processes, which differ; so are sharded ones."""

    def __init__(self, plan: cf.Plan, rank: int, stages: Dict[int, torch.nn.Module], spread: AbstractSet[torch.Tensor],
                 of_pipeline: Any, of_all: Any, name: str) -> None:
        self._plan, self._rank, self._stages, self._spread = plan, rank, stages, spread
        self._of_pipeline, self._of_all, self._name = of_pipeline, of_all, name

    def check_parameters(self) -> None:
        """Raises ValueError where an earlier process has other parameters for a stage."""
        for s, module in self._stages.items():
            if any(is_sharded(part) for part in module.modules()):
                continue
            mine = [_sums(p) for p in module.parameters() if p not in self._spread]
            other = _exchange(self._of_all, f"parameters/{s}", self._name, mine)
            if other is not None and not _alike(other[1], mine):
                raise ValueError(f"stage {s} has other parameters on {self._name} than on {other[0]}, and both train it: "
                                 "call schedule.sync_parameters() on every process, or load one state on all, "
                                 "before the first step")

    def check_rows(self, inputs: Sequence[Any]) -> None:
        """Warns where both ends of the pipeline, each of which starts half of the micro-batches, got the same rows."""
        if len(self._plan.routes) == 1 or not inputs:
            return
        tensors = [x for x in tree_flatten(list(inputs))[0] if torch.is_tensor(x)]
        mine = [_sums(x) for x in tensors]
        if len(set(mine)) == 1:
            return  # one constant, which any rows may have
        other = _exchange(self._of_pipeline, "inputs", self._name, mine)
        if other is not None and len(other[1]) > 0 and _alike(other[1], mine):
            warnings.warn(f"{self._name} and {other[0]} gave step() the same rows: each of them starts only its half of "
                          "the micro-batches: give step() what schedule.rows(batch) returns", stacklevel=5)


def _exchange(store: Any, key: str, name: str, mine: List[Sums]) -> Any:
    """Returns (name, sums) of the first process to come here; None for itself."""
    if store.add(f"{key}/count", 1) == 1:
        store.set(key, "\n".join([name, *(f"{a!r} {b!r}" for a, b in mine)]))
        return None
    first, *lines = store.get(key).decode().split("\n")
    return first, [tuple(map(float, line.split())) for line in lines]


def _sums(tensor: torch.Tensor) -> Sums:
    """Not a number where a tensor cannot be summed: of 8-bit floats, without storage, not yet made."""
    try:
        with torch.no_grad():
            values = local(tensor)
            values = torch.view_as_real(values) if values.is_complex() else values
            return float(values.sum(dtype=torch.float64)), float(values.abs().sum(dtype=torch.float64))
    except (RuntimeError, NotImplementedError, ValueError):
        return math.nan, math.nan


def _alike(theirs: Sequence[Sums], mine: Sequence[Sums]) -> bool:
    """Sums that are not numbers tell nothing."""
    return len(theirs) == len(mine) and not any(
        abs(a - b) > CLOSE * max(whole[1], other[1])
        for other, whole in zip(theirs, mine) for a, b in zip(other, whole))
