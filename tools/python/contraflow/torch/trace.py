"""The last step of a schedule as a trace, in the form of `contraflow simulate --trace`."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict, List, Sequence, Tuple, Union

import contraflow as cf

from .local import AnyLinks
from .order import Instruction
from .program import COMPONENTS
from .walk import Walk

_CATEGORIES = {"SEND_F": "send", "SEND_B": "send", "RECV_F": "receive", "RECV_B": "receive",
               "REDUCE": "reduce", "STEP": "step",
               **{op: "all-to-all" if op[0] in "DC" else "component" for op in COMPONENTS}}


def spans(walk: Walk) -> List[Tuple[Instruction, int, int, int]]:
    """(instruction, its index, start, end) of a rank, in nanoseconds since the epoch. Compute is without
    the waiting before it; a RECV lasts until what needs it can begin."""
    since = time.time_ns() - time.perf_counter_ns()
    program = walk.program.instructions
    begins: Dict[int, Tuple[int, int]] = {}
    for index, start, end in zip(walk.index_of, *walk.times()):
        begins.setdefault(index, (start, end))
    used = {recv: begins[index][0] for index, recvs in enumerate(walk.program.needs) for recv in recvs}
    return [(program[index], index, start + since, used.get(index, end) + since)
            for index, (start, end) in sorted(begins.items())]


def _rank_events(rank: int, rows: Sequence[Tuple[Dict[str, Any], int, int, int]], origin: int) -> List[Dict[str, Any]]:
    lanes: Dict[str, int] = {}

    def lane(i: Dict[str, Any]) -> Tuple[int, str]:
        category = _CATEGORIES.get(i["op"], "compute")
        name = {"send": f"send to {i.get('peer')}", "receive": f"receive from {i.get('peer')}",
                "all-to-all": "all-to-all"}.get(category, "compute")
        if name not in lanes:
            first = {"compute": 0, "all-to-all": 1}
            lanes[name] = first[name] if name in first else 2 + 2 * i["peer"] + (category == "receive")
        return lanes[name], category

    slices: List[Dict[str, Any]] = []
    for i, index, start, end in rows:
        tid, category = lane(i)
        arguments = {"index": index, **{key: value for key, value in i.items() if key != "op"}}
        slices.append({"ph": "X", "pid": rank, "tid": tid, "ts": (start - origin) / 1000,
                       "dur": (end - start) / 1000, "name": i["op"], "cat": category, "args": arguments})
    named: List[Dict[str, Any]] = [{"ph": "M", "pid": rank, "tid": 0, "name": "process_name",
                                    "args": {"name": f"rank {rank}"}}]
    named += [{"ph": "M", "pid": rank, "tid": tid, "name": "thread_name", "args": {"name": name}}
              for name, tid in sorted(lanes.items(), key=lambda item: item[1])]
    return named + slices


def write(path: Union[str, os.PathLike[str]], plan: cf.Plan, links: AnyLinks,
          rows: Sequence[Tuple[Instruction, int, int, int]]) -> None:
    """Every process calls it with what it did; the first rank of a pipeline writes the file."""
    keys = ("op", "stage", "microbatch", "layer", "back_stage", "back_microbatch", "peer")
    plain = [({key: getattr(i, key) for key in keys if getattr(i, key) is not None}, *rest) for i, *rest in rows]
    everyone = links.gather(plain)
    if links.rank != 0:
        return
    ranks = [everyone[process] for process in links.ranks]
    starts = [start for rows in ranks for _, _, start, _ in rows]
    origin = min(starts)
    makespan = max(end for rows in ranks for _, _, _, end in rows) - origin
    head = {"schedule": plan.schedule, "level": plan.level, "ranks": plan.ranks, "stages": plan.stages,
            "microbatches": plan.microbatches, "data_parallel": plan.data_parallel,
            "expert_parallel": plan.expert_parallel, "times": "measured", "unit": "us",
            "makespan": makespan / 1000}
    events = [event for rank, rows in enumerate(ranks) for event in _rank_events(rank, rows, origin)]
    text = ('{\n"displayTimeUnit": "ms",\n"otherData": ' + json.dumps(head) + ',\n"traceEvents": [\n'
            + ",\n".join(json.dumps(event) for event in events) + "\n]\n}\n")
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w") as file:
        file.write(text)
    os.replace(temporary, path)
