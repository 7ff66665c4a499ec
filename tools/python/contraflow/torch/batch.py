"""The arguments of a step, spread over the micro-batches of a rank."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

import contraflow as cf

ChunkSpec = Dict[Union[int, str], Any]


class Batch:
    """Chunks the rows of one step after another. `spec` is the chunk_spec of a PlanSchedule; `store` has the
    number of rows for ranks that are given none."""

    def __init__(self, plan: cf.Plan, rank: int, spec: Optional[ChunkSpec], variable_shapes: bool,
                 store: torch._C._distributed_c10d.Store) -> None:
        self.starts = _microbatches(plan, rank, 0)                # that start on this rank, ascending
        self.ends = _microbatches(plan, rank, plan.stages - 1)
        self._plan, self._rank, self._spec = plan, rank, dict(spec or {})
        self._variable_shapes, self._store = variable_shapes, store
        self._step = 0
        self._rows: Optional[int] = None  # of all micro-batches of the plan

    def spread(self, args: Sequence[Any], target: Any, kwargs: Dict[str, Any]
               ) -> Tuple[List[Tuple[Any, ...]], List[Any], List[Dict[str, Any]]]:
        """Returns the inputs of micro-batches that start here, targets of those that end here, and keywords of all."""
        self._check_rows(args, target)
        self._learn_rows(args, target, kwargs)
        starts, ends, count = len(self.starts), len(self.ends), self._plan.microbatches
        columns = [self._chunk(x, starts, "the input", k, True) for k, x in enumerate(args) if starts]
        targets = self._chunk(target, ends, "target", "target", True) if ends else []
        parts = {name: self._chunk(value, count, name, name) for name, value in kwargs.items()}
        return (list(zip(*columns)), targets,
                [{name: column[m] for name, column in parts.items()} for m in range(count)])

    def rows(self, batch: Any) -> Tuple[Any, Any]:
        """Returns what step() takes here as input and as target, from a batch with all rows."""
        pair = batch if isinstance(batch, (tuple, list)) and len(batch) == 2 else (batch, batch)
        return (tree_map(lambda x: self._rows_of(x, self.starts), pair[0]),
                tree_map(lambda x: self._rows_of(x, self.ends), pair[1]))

    def _rows_of(self, value: Any, microbatches: List[int]) -> Any:
        count = self._plan.microbatches
        if not _has_rows(value):
            return value
        if len(microbatches) in (0, count):
            return value if microbatches else None
        parts = self._chunks(value, count, "the batch")
        return torch.cat([parts[m] for m in microbatches])

    def _check_rows(self, args: Sequence[Any], target: Any) -> None:
        starts, ends = len(self.starts), len(self.ends)
        if starts and not args:
            raise ValueError(f"rank {self._rank}: step() needs the input of the {starts} micro-batches that "
                             "start here")
        if len(self._plan.routes) == 1 and (starts or ends):
            starts = ends = self._plan.microbatches  # with one route both are of the whole batch
        given = [(f"input {k}", len(x), starts) for k, x in enumerate(args)
                 if starts and _has_rows(x) and self._spec.get(k) is not False]
        if ends and _has_rows(target) and self._spec.get("target") is not False:
            given.append(("target", len(target), ends))
        for name, rows, count in given[1:]:
            # Rows of a target may be tokens: as many for each row of the input.
            multiple = name == "target" and rows * given[0][2] % max(1, given[0][1] * count) == 0 and rows > 0
            if rows * given[0][2] != given[0][1] * count and not multiple:
                raise ValueError(f"rank {self._rank}: {given[0][0]} has {given[0][1]} rows, {name} "
                                 f"has {rows}: give the same rows of both, or a multiple in the target")

    def _learn_rows(self, args: Sequence[Any], target: Any, kwargs: Dict[str, Any]) -> None:
        """Learns how many rows all micro-batches of the plan have. A rank on which none starts asks the first one, if
        it has something whose rows count."""
        if self.starts:
            chunked = [x for k, x in enumerate(args) if self._spec.get(k) is not False]
            given = next((len(x) for x in (*chunked, *tree_flatten(chunked)[0]) if _has_rows(x)), 0)
            self._rows = given * self._plan.microbatches // len(self.starts)
            if self._plan.routes[0].ranks[0] == self._rank and (self._variable_shapes or self._step == 0):
                self._store.set(f"rows/{self._step}", str(self._rows))
                if self._step > self._plan.ranks:  # no rank lags by more
                    self._store.delete_key(f"rows/{self._step - self._plan.ranks - 1}")
        elif self._variable_shapes or self._rows is None:
            inside = None if torch.is_tensor(target) or not self.ends else target
            if any(_has_rows(x) for x in tree_flatten((inside, kwargs))[0]):
                self._rows = int(self._store.get(f"rows/{self._step if self._variable_shapes else 0}"))
        self._step += 1

    def _chunk(self, value: Any, count: int, name: str, key: Union[int, str], always: bool = False) -> List[Any]:
        """Returns the part of each of `count` micro-batches. Tensors are chunked where the spec says it or,
        without a word there, where they have the rows of the batch; with `always` so is the value itself."""
        rows = self._rows and self._rows * count // self._plan.microbatches
        leaves, form = tree_flatten(value)
        marks = _marks(value, self._spec.get(key), f"chunk_spec[{key!r}]")
        columns: List[List[Any]] = []
        for leaf, mark in zip(leaves, marks):
            if torch.is_tensor(leaf) and leaf.requires_grad and torch.is_grad_enabled():
                raise ValueError(f"rank {self._rank}: {name} requires a gradient, and step() gives gradients to "
                                 "parameters of stages alone: detach() it, or move what makes it into a stage")
            if mark is None:
                mark = _has_rows(leaf) and len(leaf) == rows or always and torch.is_tensor(value)
            chunked = mark and torch.is_tensor(leaf)
            columns.append(self._chunks(leaf, count, name) if chunked else [leaf] * count)
        if leaves and leaves[0] is value:
            return columns[0]
        return [tree_unflatten([column[m] for column in columns], form) for m in range(count)]

    def _chunks(self, value: torch.Tensor, count: int, name: str) -> List[torch.Tensor]:
        has = f"rank {self._rank}: {name} has shape {list(value.shape)}, which does not chunk into {count} "
        if value.dim() == 0 or len(value) < count:
            raise ValueError(has + "micro-batches along dimension 0")
        two = len(self._plan.routes) > 1  # each end knows its own rows alone
        if len(value) % count != 0 and (two or not self._variable_shapes):
            raise ValueError(has + "micro-batches of the same size: leave the last batch out (drop_last of a DataLoader)"
                             + (", for the plan has two routes" if two else ", or pass variable_shapes=True"))
        return list(value.detach().tensor_split(count))


def check_chunk_spec(spec: Optional[ChunkSpec]) -> None:
    """Raises TypeError, with the remedy, unless it is one."""
    if spec is None:
        return
    if not isinstance(spec, dict):
        raise TypeError("chunk_spec must be a dict from the name of a keyword, \"target\" or the place of an input "
                        f"to True (chunked) or False (whole), is a {type(spec).__name__}")
    for key, value in spec.items():
        if isinstance(key, bool) or not isinstance(key, (int, str)):
            raise TypeError(f"chunk_spec: {key!r} must be the name of a keyword, \"target\" or the place of an "
                            "input")
        wrong = [leaf for leaf in tree_flatten(value)[0] if leaf is not None and not isinstance(leaf, bool)]
        if wrong:
            raise TypeError(f"chunk_spec[{key!r}] must be True (chunked), False (whole), None (by its rows), or "
                            f"lists, tuples and dicts of these; has {wrong[0]!r:.80}")


def _marks(value: Any, spec: Any, place: str) -> List[Optional[bool]]:
    """Returns the spec for each leaf of a value."""
    if spec is None or isinstance(spec, bool):
        return [spec] * len(tree_flatten(value)[0])
    kind = next((k for k in (dict, list, tuple) if isinstance(value, k)), None)
    if kind is None or isinstance(spec, dict) != (kind is dict) or len(spec) > len(value) or (
            kind is not dict and len(spec) != len(value)):
        raise ValueError(f"{place} is a {type(spec).__name__} of {len(spec)}, and what is given there "
                         f"{_described(value)}: give the same form, or True or False for all of it")
    if isinstance(spec, dict):
        unknown = [key for key in spec if key not in value]
        if unknown:
            raise ValueError(f"{place} has {unknown[0]!r}, and what is given there has {list(value)}")
        parts = [(part, spec.get(key), key) for key, part in value.items()]
    else:
        parts = list(zip(value, spec, range(len(spec))))
    return [mark for part, s, key in parts for mark in _marks(part, s, f"{place}[{key!r}]")]


def _described(value: Any) -> str:
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, (dict, list, tuple)) else "")


def _microbatches(plan: cf.Plan, rank: int, stage: int) -> List[int]:
    """Returns the micro-batches whose `stage` lives on a rank, ascending."""
    return sorted(m for route in plan.routes if route.ranks[stage] == rank for m in route.microbatches)


def _has_rows(value: Any) -> bool:
    return torch.is_tensor(value) and value.dim() > 0
