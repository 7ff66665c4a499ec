"""Plans with one route, in PyTorch's own pipelining runtime."""

from __future__ import annotations

import os
import tempfile
from typing import Any, Callable, List, Optional, Sequence

import contraflow as cf

from .program import check, forward_cell


def as_torch_schedule(plan: cf.Plan, stages: Sequence[Any], loss_fn: Optional[Callable[..., Any]],
                      **options: Any) -> Any:
    """A `_PipelineScheduleRuntime` that walks the plan's order, for this rank's `PipelineStage`s, with
    PyTorch's own messages. `options` go to its constructor. FB needs torch 2.9 or newer."""
    check(plan)
    if len(plan.routes) != 1:
        raise ValueError("the plan has two routes, PyTorch's runtime knows one: use PlanSchedule")
    if any(i.op == "R" for program in plan.programs for i in program):
        raise ValueError("the plan recomputes, which PyTorch's runtime does not know: use PlanSchedule, or "
                         "compile it with recompute=\"none\" and checkpoint inside the modules")
    last: List[Any] = [i.microbatch for program in plan.programs for i in program
                       if forward_cell(i) and i.stage == plan.stages - 1]
    if last != sorted(last):
        raise ValueError("the last stage runs its micro-batches out of turn, and PyTorch's runtime takes "
                         "losses by position: use PlanSchedule, or compile the plan with for_=\"torch\"")
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    ranks = dict(enumerate(plan.routes[0].ranks))
    for stage in stages:
        if ranks[stage.stage_index] != stage.group_rank:
            raise ValueError(f"stage {stage.stage_index} lives on rank {ranks[stage.stage_index]} in the "
                             f"plan, its PipelineStage on rank {stage.group_rank}")
    runtime: Any = _PipelineScheduleRuntime
    schedule = runtime(stages, plan.microbatches, loss_fn=loss_fn, **options)
    schedule.stage_index_to_group_rank = ranks
    for stage in stages:
        stage.stage_index_to_group_rank = ranks
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.csv")
        plan.to_torch_csv(path)
        schedule._load_csv(path)
    return schedule
