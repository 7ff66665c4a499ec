"""Facts of a rank's program beyond its order: who consumes a message, when a message that was sent
has surely arrived, and where the gradients of a stage are complete."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import contraflow as cf

from .order import COMPUTE_LANE, Instruction, LaneOrder, lane_of

MESSAGES = ("SEND_F", "SEND_B", "RECV_F", "RECV_B")
COMPUTE = ("F", "B", "W", "BW", "FB")
COMPONENTS = tuple(f"{part}_{way}" for part in ("ATTN", "DISPATCH", "MLP", "COMBINE") for way in "FRBW"
                   if way != "W" or part in ("ATTN", "MLP"))
FORWARD = ("F", "FB", *(op for op in COMPONENTS if op.endswith("F")))
BACKWARD = ("B", "BW", "FB", *(op for op in COMPONENTS if op.endswith("B")))
WEIGHT = ("W", "BW", "FB", "ATTN_W", "MLP_W")
KNOWN = COMPUTE + COMPONENTS + ("R", "REDUCE", "STEP") + MESSAGES


def forward_cell(i: Instruction) -> Any:
    """(stage, micro-batch) whose forward an instruction runs, all or a part of it, or None."""
    return (i.stage, i.microbatch) if i.op in FORWARD else None


def back_cell(i: Instruction, ops: Sequence[str] = BACKWARD) -> Any:
    """(stage, micro-batch) whose backward an instruction runs, all or a part of it, or None."""
    if i.op not in ops:
        return None
    return (i.back_stage, i.back_microbatch) if i.op == "FB" else (i.stage, i.microbatch)


def tag(i: Instruction) -> Tuple[str, int, int]:
    """Equal for a SEND and its RECV: activation or gradient, the stage that made it, micro-batch."""
    made = i.stage + {"RECV_F": -1, "RECV_B": 1}.get(i.op, 0)
    return i.op[-1], made, i.microbatch


def range_name(i: Instruction) -> str:
    """An instruction as profiles call it: as PyTorch's runtime does, a component as DeepSeek's published one."""
    if i.op in COMPONENTS:
        part, way = i.op.split("_")
        return f"{part.lower()}({way})"
    if i.op == "FB":
        return f"PP:({i.stage}F{i.microbatch};{i.back_stage}B{i.back_microbatch})OVERLAP_F_B"
    name = {"B": "I", "BW": "B", "REDUCE": "REDUCE_GRAD"}.get(i.op, i.op)
    return f"PP:{i.stage}{name}{'' if i.microbatch is None else i.microbatch}"


def check(plan: cf.Plan) -> None:
    """Raises ValueError, with the remedy, unless the runtime can walk the plan."""
    if plan.level not in ("comm", "component"):
        reason = "has addresses in memory" if plan.level == "buffer" else "has no messages yet"
        raise ValueError(f"the plan is of level {plan.level}, which {reason}: compile it with "
                         "level=\"comm\", or level=\"component\" for stages given as layers")
    for rank, program in enumerate(plan.programs):
        for index, i in enumerate(program):
            if i.op not in KNOWN:
                remedy = (": compile it with offload=\"none\"" if "LOAD" in i.op else "")
                raise ValueError(f"rank {rank}, {i} (instruction {index}): {i.op} is nothing that "
                                 f"contraflow.torch runs{remedy}")
            if i.op == "R" and any(key in str(i) for key in (" part=", " layers=")):
                raise ValueError(f"rank {rank}, {i} (instruction {index}): modules run their whole "
                                 "forward again: compile it with level=\"component\" and give layers, compile "
                                 "it with recompute=\"full\" or stages, or checkpoint inside the modules")


def holders(plan: cf.Plan) -> List[List[int]]:
    """For each stage the ranks that hold it, ascending."""
    return [sorted({route.ranks[stage] for route in plan.routes}) for stage in range(plan.stages)]


def edges(plan: cf.Plan) -> List[Tuple[int, int]]:
    """The directed pairs of ranks between which messages go, ascending."""
    return sorted({(rank, int(i.peer or 0)) for rank, program in enumerate(plan.programs) for i in program
                   if i.op in ("SEND_F", "SEND_B")})


def layer_kinds(program: Sequence[Instruction]) -> Dict[int, str]:
    """A letter for each layer, as in plans, by stage of a component program."""
    kinds: Dict[int, Dict[int, str]] = {}
    for i in program:
        if i.op in ("ATTN_F", "MLP_F", "DISPATCH_F"):
            of_layers = kinds.setdefault(i.stage, {})
            kind = {"ATTN_F": "p", "MLP_F": "d", "DISPATCH_F": "m"}[i.op]
            of_layers[i.layer] = min(of_layers.get(i.layer, "p"), kind, key="mdp".index)
    return {s: "".join(of_layers[k] for k in sorted(of_layers)) for s, of_layers in kinds.items()}


class RankProgram:
    """The program of one rank, with what follows from the programs of its peers."""

    def __init__(self, plan: cf.Plan, rank: int) -> None:
        self.rank = rank
        self.instructions: List[Instruction] = list(plan.programs[rank])
        self.needs = _needs(self.instructions)    # by instruction: the RECVs that it waits for
        self.order = _order(plan, self.instructions)  # its lanes, or None where it has one
        self.arrived = self._arrivals(plan)       # by instruction: SENDs that are over once it runs
        # The stage whose sum begins at each instruction, or None.
        self.complete: List[Optional[int]] = [None] * len(self.instructions)
        for stage, index in _completions(self.instructions).items():
            self.complete[index] = stage
        self.again = {(i.stage, i.microbatch) for i in self.instructions if i.op == "R"}
        # The parts that run again, by stage, micro-batch and layer.
        self.parts_again: Dict[Tuple[int, int, int], Set[str]] = {}
        for i in self.instructions:
            if i.op.endswith("_R"):
                self.parts_again.setdefault((i.stage, i.microbatch, i.layer), set()).add(i.op[:-2])
        self.kinds = layer_kinds(self.instructions)

    def _arrivals(self, plan: cf.Plan) -> List[List[int]]:
        """A SEND is over when something arrives that its receiver sent after the instruction that
        waited for it; then its bytes can be dropped without waiting."""
        mine = self.instructions
        arrived: List[List[int]] = [[] for _ in mine]
        consumer_of = {tag(mine[recv]): index for index, recvs in enumerate(self.needs)
                       for recv in recvs}
        for peer in sorted({i.peer for i in mine if i.op.startswith("SEND")}):
            program: List[Instruction] = list(plan.programs[peer])
            order = _order(plan, program)
            their = {tag(program[recv]): index for index, recvs in enumerate(_needs(program))
                     for recv in recvs if program[recv].peer == self.rank}
            back = [(index, consumer_of[tag(i)]) for index, i in enumerate(program)
                    if i.op.startswith("SEND") and i.peer == self.rank]
            at = 0
            sends = sorted((their[tag(i)], index) for index, i in enumerate(mine)
                           if i.op.startswith("SEND") and i.peer == peer)
            for consumed, index in sends:
                while at < len(back) and back[at][0] <= consumed:
                    at += 1
                consumers = [consumer for sent, consumer in back[at:at + 8]
                             if order is None or order.before(consumed, sent)]
                if consumers:
                    arrived[min(consumers)].append(index)
        return arrived


def _order(plan: cf.Plan, program: Sequence[Instruction]) -> Any:
    """The lanes of a program of level component, or None. A RECV also waits for the forward that tells its form,
    and for the compute before the last one: so its buffer is taken no earlier than the plan says."""
    if plan.level != "component":
        return None
    awaited: List[List[int]] = []
    forward_ends: Dict[Any, int] = {}
    compute: List[int] = []
    for index, i in enumerate(program):
        before = list(i.after)
        if i.op.startswith("RECV"):
            before += compute[-2:-1]
        if i.op == "RECV_B":
            before.append(forward_ends[i.stage, i.microbatch])
        if forward_cell(i) is not None:
            forward_ends[forward_cell(i)] = index
        if lane_of(i) == COMPUTE_LANE:
            compute.append(index)
        awaited.append(before)
    return LaneOrder(program, awaited)


def _completions(program: Sequence[Instruction]) -> Dict[int, int]:
    """The instruction at which the gradients of each stage are complete."""
    last: Dict[int, int] = {}
    for index, i in enumerate(program):
        if i.op in WEIGHT:
            last[back_cell(i, WEIGHT)[0]] = index
    for index, i in enumerate(program):
        if i.op == "REDUCE":
            last[i.stage] = index
    return last


def completion_order(program: Sequence[Instruction]) -> List[int]:
    """The stages of a rank in the order in which their gradients are complete."""
    last = _completions(program)
    return sorted(last, key=last.__getitem__)


def _needs(program: Sequence[Instruction]) -> List[List[int]]:
    """The indices of the RECVs whose messages each instruction consumes."""
    needs: List[List[int]] = [[] for _ in program]
    received: Dict[Any, int] = {}
    for index, i in enumerate(program):
        if i.op.startswith("RECV"):
            received[i.op[-1], i.stage, i.microbatch] = index
        forward, back = forward_cell(i), back_cell(i)
        for kind, cell in (("F", forward), ("B", back)):
            if cell is not None and (kind, *cell) in received:
                needs[index].append(received.pop((kind, *cell)))
    return needs
