"""The operations that the program of a rank comes down to, and how a step runs them."""

from __future__ import annotations

import functools
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

import contraflow as cf

from . import lanes
from . import program as plans
from .lanes import StreamLanes, ThreadLanes
from .layered_stage import LayeredStage
from .links import Edge, wait
from .local import AnyLinks
from .order import COMPUTE_LANE, Instruction, foreign, lane_of, mark_lane
from .program import RankProgram, back_cell, forward_cell
from .progress import Progress
from .reduce import GradientSum
from .stage import Cell, Overlap, Stage

Work = Callable[[], Any]
Operations = List[Tuple[Optional[Work], Work]]  # a wait, and the work after it


class Walk:
    """Closures for the instructions of a rank, made once.

    program         RankProgram of this rank
    stages, sums    by stage: a Stage or LayeredStage, and its GradientSum
    on_step         on_step(stage), or None
    overlap         an Overlap, or None
    variable_shapes, device, links
                    as in PlanSchedule
    explain         explain(error), for a lane that fails while another one cannot be woken
    timing_every    as in PlanSchedule
    """

    def __init__(self, plan: cf.Plan, program: RankProgram, stages: Dict[int, Stage], sums: Dict[int, GradientSum],
                 links: AnyLinks, device: torch.device, *, variable_shapes: bool, overlap: Optional[Overlap],
                 on_step: Optional[Callable[[int], Any]], explain: Callable[[BaseException], object],
                 timing_every: int = 0) -> None:
        self.program, self.links = program, links
        self._stages, self._sums, self._overlap, self._on_step = stages, sums, overlap, on_step
        self._device, self._variable_shapes = device, variable_shapes
        self._api = lanes.streams_of(device)
        self._held: Dict[Optional[int], List[Any]] = {}  # by instruction: tensors of other lanes until it begins
        self._make_cells(plan)
        self._make_operations(plan)
        self.progress: Optional[Progress] = None  # of a GPU
        self.lanes: Any = self._make_lanes(explain, timing_every)
        self._at = -1

    def _make_cells(self, plan: cf.Plan) -> None:
        self.cells: Dict[Tuple[int, int], Cell] = {}
        for i in self.program.instructions:
            for key in (forward_cell(i), back_cell(i)):
                if key is not None and key not in self.cells:
                    self.cells[key] = Cell(key[0], key[1], key in self.program.again)
        for (s, m), cell in self.cells.items():
            following = self.cells.get((s + 1, m))
            if following is not None:
                cell.next, following.back = following, cell
        ordered = sorted(self.cells.items(), key=lambda item: item[0][1])
        self.first = [cell for (s, _), cell in ordered if s == 0]
        self.last = [cell for (s, _), cell in ordered if s == plan.stages - 1]
        self._layers: Dict[Tuple[int, int], List[Any]] = {}  # by stage and micro-batch, where stages have layers
        for (s, m), cell in self.cells.items():
            stage = self._stages[s]
            if isinstance(stage, LayeredStage):
                again = [frozenset(self.program.parts_again.get((s, m, layer), ()))
                         for layer in range(len(stage.kinds))]
                self._layers[s, m] = stage.cells(cell, again)

    def _make_operations(self, plan: cf.Plan) -> None:
        """The closures that a step calls: (waiting or None, work), and by operation its instruction."""
        program = self.program.instructions
        self.works: List[Any] = [()] * len(program)  # by instruction: messages under way
        self._edges: Dict[Tuple[int, int], Edge] = {}
        self.operations: Operations = []
        self.index_of: List[int] = []
        self.labels: List[str] = []
        for at in _posting_order(program):
            awaited = self.program.needs[at] + self.program.arrived[at]
            self.operations.append((self._waiting(at, awaited), self._work(at, program[at])))
            self.index_of.append(at)
            self.labels.append(plans.range_name(program[at]))
            complete = self.program.complete[at]
            if complete is not None and program[at].op != "REDUCE":
                self.operations.append((None, functools.partial(self._start_sum, at, complete)))
                self.index_of.append(at)
                self.labels.append(f"PP:{complete}REDUCE_GRAD")
        self.forwards = self._make_forwards()
        self.starts = [0] * len(self.operations)
        self.ends = [0] * len(self.operations)

    def _make_forwards(self) -> Operations:
        """The operations of eval(): what is not of a forward does nothing."""
        forwards: Operations = []
        for (waiting, work), at, label in zip(self.operations, self.index_of, self.labels):
            i = self.program.instructions[at]
            if i.op in ("SEND_F", "RECV_F"):
                forwards.append((waiting, work))
            elif i.op in plans.FORWARD and not label.endswith("REDUCE_GRAD"):
                awaited = [k for k in self.program.needs[at] if self.program.instructions[k].op == "RECV_F"]
                if i.op in plans.COMPONENTS:
                    forward: Work = self._part(at, i, "forward_alone")
                else:
                    forward = functools.partial(self._stages[i.stage].forward_only, self.cells[forward_cell(i)])
                forwards.append((self._waiting(at, awaited), forward))
            else:
                forwards.append((None, _skip))
        return forwards

    def _make_lanes(self, explain: Callable[[BaseException], object], timing_every: int) -> Any:
        if self.program.order is None:
            if self._api is not None:
                self.progress = Progress(self._api, self._device, [COMPUTE_LANE] * len(self.operations), timing_every)
            return None
        position_of: Dict[int, int] = {}
        for position, at in enumerate(self.index_of):
            position_of.setdefault(at, position)
        order = self.program.order
        of_lanes = [order.lanes[at] for at in self.index_of]
        awaited = [[position_of[k] for k in order.awaited[at]] for at in self.index_of]
        if self._api is not None:
            self.progress = Progress(self._api, self._device, of_lanes, timing_every)
            streams = StreamLanes(of_lanes, awaited, self._device, self.progress)
            for stage in self._stages.values():
                if isinstance(stage, LayeredStage):
                    stage.computing = streams.computing
            return streams
        return ThreadLanes(of_lanes, awaited, explain)

    def _waiting(self, at: int, awaited: List[int]) -> Optional[Work]:
        if not awaited:
            return None
        works, has_lanes = self.works, self.program.order is not None

        def waiting() -> None:
            for k in awaited:
                for work, _ in works[k]:
                    work.wait()
                if has_lanes:
                    self._hold(at, [tensor for _, tensor in works[k]])
                works[k] = ()
        return waiting

    def _hold(self, at: int, read: Sequence[Any]) -> None:
        """Keeps what an instruction read of other lanes until they have gone past it."""
        order = self.program.order
        for lane, tensors in foreign(read, order.lanes[at]).items():
            # Under None until the end of the step: the next one begins after all lanes.
            self._held.setdefault(order.free_at(lane, at), []).append(tensors)

    def _work(self, at: int, i: Instruction) -> Work:
        if i.op in plans.MESSAGES:
            return self._message(at, i)
        stage = self._stages[i.stage]
        if i.op == "REDUCE":
            return functools.partial(self._start_sum, at, i.stage)
        if i.op == "STEP":
            return lambda: self._step_of(i.stage)
        if i.op in plans.COMPONENTS:
            way = {"F": "forward", "R": "forward_again", "B": "backward", "W": "weight"}[i.op[-1]]
            return self._part(at, i, way)
        cell = self.cells[i.stage, i.microbatch]
        if i.op == "FB":
            back, back_of = self._stages[i.back_stage], self.cells[i.back_stage, i.back_microbatch]
            overlap = self._overlap
            return lambda: stage.forward_backward(cell, back, back_of, overlap)
        work = {"F": stage.forward, "R": stage.forward_again, "B": stage.backward_input,
                "W": stage.backward_weight, "BW": stage.backward}[i.op]
        return lambda: work(cell)

    def _part(self, at: int, i: Instruction, way: str) -> Work:
        method, part = getattr(self._layers[i.stage, i.microbatch][i.layer], way), i.op[:-2]
        return lambda: self._hold(at, method(part))

    def _message(self, at: int, i: Instruction) -> Work:
        cell, works = self.cells[i.stage, i.microbatch], self.works
        sends = i.op.startswith("SEND")
        rank = self.program.rank
        ends: Tuple[int, int] = (rank, i.peer) if sends else (i.peer, rank)
        if ends not in self._edges:
            self._edges[ends] = Edge(self.links, *ends, self._device, self._variable_shapes)
        edge, stage, lane = self._edges[ends], i.stage, lane_of(i)
        has_lanes = self.program.order is not None
        # On a stream of its own a message is over before the next one on it.
        leave = wait if self._api is not None and has_lanes else lambda _: None
        if i.op == "SEND_F":
            def work() -> None:
                works[at] = edge.send(stage, cell.out)
                cell.out = None
                leave(works[at])
        elif i.op == "RECV_F":
            def work() -> None:
                cell.x, works[at] = edge.receive(stage - 1)
                if has_lanes:
                    mark_lane(cell.x, (), lane)
        elif i.op == "SEND_B":
            def work() -> None:
                works[at] = edge.send_as(cell.dx)
                cell.dx = None
                leave(works[at])
        else:
            def work() -> None:
                cell.dy, works[at] = edge.receive_as(cell.y_form)
                if has_lanes:
                    mark_lane(cell.dy, (), lane)
        return work

    def _start_sum(self, at: int, stage: int) -> None:
        of_other_lanes = self._sums[stage].start()
        if self.program.order is not None:
            self._hold(at, of_other_lanes)

    def _step_of(self, stage: int) -> None:
        self._sums[stage].finish()
        if self._on_step is not None:
            self._on_step(stage)

    # A step

    def begin(self) -> None:
        """Called before the first operation of a step. A failure before this has not begun the step."""
        self._at = 0

    def run(self, operations: Operations, annotated: bool) -> None:
        if annotated:
            operations = self._annotated(operations)
        progress = self.progress
        if progress is not None:
            progress.begin(torch.is_grad_enabled())
        if self.lanes is not None:
            self.lanes.run(functools.partial(self._run_on_lane, operations))
            return
        starts, ends, clock = self.starts, self.ends, time.perf_counter_ns
        stream = progress and self._api.current_stream(self._device)
        for at, (waiting, work) in enumerate(operations):
            if waiting is not None:
                self._at = 2 * at
                waiting()
            self._at = 2 * at + 1
            if progress is not None:
                progress.before(at, stream)
            starts[at] = clock()
            work()
            ends[at] = clock()
            if progress is not None:
                progress.after(at, stream)

    def _run_on_lane(self, operations: Operations, position: int) -> None:
        self._held.pop(self.index_of[position], None)
        waiting, work = operations[position]
        if waiting is not None:
            waiting()
        if self.progress is not None:
            self.progress.before(position, self._api.current_stream(self._device))
        self.starts[position] = time.perf_counter_ns()
        work()
        self.ends[position] = time.perf_counter_ns()

    def _annotated(self, operations: Operations) -> Operations:
        """The same, each under its name in the profile."""
        def named(label: str, work: Work) -> Work:
            def under_name() -> None:
                with torch.profiler.record_function(label):
                    work()
            return under_name
        return [(waiting, named(label, work)) for (waiting, work), label in zip(operations, self.labels)]

    def finish(self) -> None:
        """Waits for messages that are still under way."""
        self._at = 2 * len(self.operations)
        for at, works in enumerate(self.works):
            if works:
                wait(works)
                self.works[at] = ()
        for edge in self._edges.values():
            edge.finish()
        self._held.clear()

    def end(self) -> None:
        """After a step."""
        self._at = -1

    def forget(self) -> None:
        """Drops all that the step left."""
        for cell in self.cells.values():
            cell.forget()
        for layers in self._layers.values():
            for layer in layers:
                layer.forget()

    def close(self) -> None:
        """Drops the operations, and with them the process groups."""
        self.operations, self.forwards, self._edges, self._sums, self.lanes = [], [], {}, {}, None

    def times(self) -> Tuple[List[int], List[int]]:
        """When each operation began and ended, in ns of the performance counter: on the GPU in the last step with
        timing, else in the last step, where the host was."""
        on_gpu = self.progress.times() if self.progress is not None else None
        return on_gpu or (self.starts, self.ends)

    def on_gpu(self) -> List[int]:
        """The operations that a GPU is at."""
        return self.progress.places() if self.progress is not None else []

    @property
    def begun(self) -> bool:
        return self._at >= 0

    def failed_at(self) -> Tuple[int, Instruction]:
        """The instruction at which an error ended the step, and its index."""
        if self.lanes is not None and self.lanes.failed is not None:
            position = self.lanes.failed[0]
        else:
            position = min(max(self._at, 0) // 2, len(self.operations) - 1)
        index = self.index_of[position]
        return index, self.program.instructions[index]

    def place(self) -> str:
        """The place of this rank in a step, in words."""
        on_gpu = self.on_gpu()
        if on_gpu:
            return "; ".join(self._place_of(at, not self.program.needs[self.index_of[at]]) for at in on_gpu)
        if self._at // 2 >= len(self.operations):
            return "waits at the end of the step for its messages and sums"
        if self.lanes is None:
            return self._place_of(*divmod(self._at, 2))
        places = []
        for position, other in self.lanes.places():
            text = self._place_of(position, 1)
            if other is not None:
                text = f"waits for {self.program.instructions[self.index_of[other]]} at {text.split(' in ', 1)[1]}"
            places.append(text)
        return "; ".join(places) or "is between the lanes of a step"

    def _place_of(self, position: int, works: int) -> str:
        index, program = self.index_of[position], self.program.instructions
        place = f"{program[index]} (instruction {index} of {len(program)})"
        if works:
            waits = program[index].op in plans.MESSAGES + ("REDUCE", "STEP")
            return f"{'waits' if waits else 'is'} in {place}"
        awaited = [program[k] for k in self.program.needs[index]]
        peers = ", ".join(f"rank {i.peer} ({i})" for i in awaited)
        return f"waits for {peers or 'its messages to leave'} at {place}"


def _skip() -> None:
    pass


def _posting_order(program: Sequence[Instruction]) -> List[int]:
    """Indices of the instructions; in a group of messages sends come first, so that a receive that
    has to learn its form cannot hold them up."""
    order: List[int] = []
    at = 0
    while at < len(program):
        end = at + 1
        if program[at].group is not None:
            while end < len(program) and program[end].group == program[at].group:
                end += 1
        order += sorted(range(at, end), key=lambda k: program[k].op.startswith("RECV"))
        at = end
    return order
