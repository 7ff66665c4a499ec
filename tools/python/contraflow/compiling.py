"""From a size and costs to a plan, or to plans side by side."""

from __future__ import annotations

import inspect
import os
from typing import Any, Mapping, Optional, Sequence, Union

from contraflow import _core

CostsLike = Union[_core.Costs, Mapping[str, Any], str, "os.PathLike[str]"]
"""Costs, a dict as in cost files, a cost file, or the name of a profile that ships."""


def compile(
    schedule: str,
    *,
    ranks: int,
    microbatches: int,
    costs: Optional[CostsLike] = None,
    f: Union[str, float, None] = None,
    b: Union[str, float, None] = None,
    w: Union[str, float, None] = None,
    bw: Union[str, float, None] = None,
    fb: Union[str, float, None] = None,
    comm: Union[str, float, None] = None,
    split: Optional[float] = None,
    host_link: Union[str, float, None] = None,
    overlap: Optional[str] = None,
    chunks: Optional[int] = None,
    data_parallel: Optional[int] = None,
    expert_parallel: Optional[int] = None,
    model: Union[str, "os.PathLike[str]", None] = None,
    capacity: Optional[float] = None,
    device: Optional[str] = None,
    memory_limit: Union[str, int, None] = None,
    device_memory: Union[str, int, None] = None,
    zero: Optional[int] = None,
    placement: Union[str, Sequence[str], None] = None,
    budget: Union[str, float, None] = None,
    until: Optional[str] = None,
    seed: Optional[int] = None,
    noise: Optional[float] = None,
    recompute: Union[str, Sequence[int], None] = None,
    offload: Union[str, Sequence[int], None] = None,
    partition: Union[str, Sequence[int], None] = None,
    for_: Optional[str] = None,
    level: Optional[str] = None,
) -> _core.Plan:
    """Makes a plan: generates the schedule, lowers it, proves it.

    Times are in the unit of the costs; sizes are bytes or text such as "80GB" or "1x"; a budget is
    text such as "500ms", or seconds. Of several placements the one with the shortest step is taken.
    Ctrl-C ends a search. The keywords are the options of `contraflow compile`:
    """
    return _core.compile(**locals())


def compare(
    *,
    ranks: int,
    microbatches: int,
    costs: Optional[CostsLike] = None,
    f: Union[str, float, None] = None,
    b: Union[str, float, None] = None,
    w: Union[str, float, None] = None,
    bw: Union[str, float, None] = None,
    fb: Union[str, float, None] = None,
    comm: Union[str, float, None] = None,
    split: Optional[float] = None,
    host_link: Union[str, float, None] = None,
    overlap: Optional[str] = None,
    chunks: Optional[int] = None,
    data_parallel: Optional[int] = None,
    expert_parallel: Optional[int] = None,
    memory_limit: Union[str, int, None] = None,
    device_memory: Union[str, int, None] = None,
    zero: Optional[int] = None,
    placement: Optional[str] = None,
    budget: Union[str, float, None] = None,
    until: Optional[str] = None,
    seed: Optional[int] = None,
    noise: Optional[float] = None,
    recompute: Union[str, Sequence[int], None] = None,
    offload: Union[str, Sequence[int], None] = None,
    partition: Union[str, Sequence[int], None] = None,
    for_: Optional[str] = None,
    schedules: Union[str, Sequence[str], None] = None,
    global_batch: Optional[int] = None,
    sort: Optional[str] = None,
    no_auto: bool = False,
) -> _core.Comparison:
    """Simulates all schedules side by side, and recommends one.

    The keywords are the options of `contraflow compare`:
    """
    return _core.compare(**locals())


def plan(
    *,
    model: Union[str, "os.PathLike[str]", Mapping[str, Any]],
    gpu: Union[str, "os.PathLike[str]"],
    gpus: int,
    global_batch: int,
    seq: int,
    like: Optional[str] = None,
    dtype: Optional[str] = None,
    tp_overlap: Optional[bool] = None,
    optimizer: Optional[str] = None,
    activations: Optional[str] = None,
    workspace: Union[str, int, None] = None,
    memory: Union[str, int, None] = None,
    fix: Union[str, Mapping[str, int], None] = None,
    only: Union[str, Sequence[str], None] = None,
    for_: Optional[str] = None,
    measured: Optional[str] = None,
    budget: Union[str, float, None] = None,
    top: Optional[int] = None,
) -> _core.Plans:
    """Finds the parallelism and schedule with the shortest step for a model on a number of GPUs.

    The model is a config.json of Hugging Face, or what it holds as a dict; `fix` is text or a dict
    such as {"tp": 8}. Ctrl-C ends the search. The keywords are the options of `contraflow plan`:
    """
    keywords = dict(locals())
    if isinstance(fix, Mapping):
        keywords["fix"] = ",".join(f"{name.replace('_', '-')}={value}" for name, value in fix.items())
    return _core.plan(**keywords)


for _function, _made in ((compile, _core.compile), (compare, _core.compare), (plan, _core.plan)):
    if _function.__doc__:  # python -OO has none
        _function.__doc__ = inspect.cleandoc(_function.__doc__) + f"\n\n{_made.__doc__}"
