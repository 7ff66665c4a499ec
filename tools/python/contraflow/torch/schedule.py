"""PlanSchedule: one rank's program, walked with modules as stages."""

import functools
import threading
import time
from typing import Any, Dict, Iterator, Mapping, Tuple, Union

import torch
import torch.distributed as dist

from . import program as plans
from . import trace
from .agreement import Arguments, agree, warn_of_statistics
from .batch import Batch
from .links import Edge, Links, default_device, members, wait
from .losses import Losses
from .program import RankProgram, back_cell, forward_cell
from .reduce import GradientSum, tied_ranks
from .sharded import local
from .stage import Cell, Stage, without_cast_cache
from .state import State
from .watch import StepError, Watch


class PlanSchedule:
    """Runs the steps of a plan over torch.distributed. Every process of the pipeline makes one, with the
    same plan.

    plan            a contraflow.Plan of level comm, of any schedule
    stages          {stage: module} for the stages that live on this rank (`plan.stages_of(rank)`). Its
                    output, a tensor or a tuple of tensors, is the next stage's input
    loss_fn         loss_fn(output, target) -> a scalar, on ranks with the last stage
    group           the processes of this pipeline, rank by rank (None: all)
    overlap         an Overlap, for FB (None: one after the other)
    weight_grad     "autograd", or "store" for kernels that use WeightGradStore
    data_parallel   the processes that hold this rank in all replicas of the pipeline; gradients are
                    averaged over them
    grad_reduce     instead: grad_reduce(stage, module), called where the gradients of a stage are complete
                    and summed over the ranks of this pipeline that hold it
    scale_grads     divide gradients by the number of micro-batches
    on_step         on_step(stage), called at STEP, where the gradients of a stage are ready
    variable_shapes send the shapes of activations with each message, not only with the first
    keep_rng        recomputed forwards get the random numbers of the first ones
    timeout         seconds that a message may take
    annotate        name each instruction in profiles: PP:0F3, PP:(0F7;7B3)OVERLAP_F_B
    links           process groups to share with other schedules (Links)
    device          where messages live (None: where the modules are)
    chunk_spec      {name of a keyword, "target" or place of an input: True (chunked) or False (whole), or
                    lists, tuples and dicts of these}; where it says nothing, rows decide
    names           names(stage, name) -> the name of a parameter or buffer in the whole model (None: as `split`
                    has it, else stage.{stage}.{name})
    """

    def __init__(self, plan, stages, loss_fn=None, group=None, *, overlap=None, weight_grad="autograd",
                 data_parallel=None, grad_reduce=None, scale_grads=True, on_step=None,
                 variable_shapes=False, keep_rng=True, timeout=300.0, annotate=True, links=None,
                 device=None, chunk_spec=None, names=None):
        ranks = members(group) if links is None else links.ranks
        replicas = members(data_parallel) if data_parallel is not None else [dist.get_rank()]
        token = agree(Arguments(plan, ranks, replicas, stages, loss_fn=loss_fn, weight_grad=weight_grad,
                                data_parallel=data_parallel, grad_reduce=grad_reduce, on_step=on_step,
                                scale_grads=bool(scale_grads), variable_shapes=bool(variable_shapes),
                                device=device, keep_rng=bool(keep_rng), timeout=timeout,
                                chunk_spec=chunk_spec, names=names and "given"))
        holders = plans.holders(plan)
        self._device = torch.device(device) if device is not None else default_device(stages.values())
        self._owns_links = links is None
        tied = tied_ranks(plan, stages)
        if links is None:
            links = Links(plans.edges(plan), {*map(tuple, holders), *tied}, group, data_parallel, timeout,
                          self._device)
        self.plan, self.rank, self.links = plan, links.rank, links
        warn_of_statistics(plan, self.rank, stages)

        last = plan.stages - 1
        self._stages = {s: Stage(s, module, s == last, loss_fn, weight_grad, keep_rng)
                        for s, module in sorted(stages.items())}
        self._variable_shapes, self._overlap = variable_shapes, overlap
        self._annotate, self._on_step = annotate, on_step
        divisor = plan.microbatches if scale_grads else 1
        if data_parallel is not None:
            divisor *= len(replicas)
        self._sums = {s: GradientSum(self._stages[s], links.sum_group(holders[s]), divisor, grad_reduce)
                      for s in plans.completion_order(plan.programs[self.rank])}
        self._tied = {ranks: (GradientSum(None, links.sum_group(ranks), divisor), places)
                      for ranks, places in sorted(tied.items())}
        self._state = State(links, dict(sorted(stages.items())), holders, names)
        self._losses = Losses(links, plan.microbatches)

        self._program = RankProgram(plan, self.rank)
        self._make_cells()
        self._make_operations()
        self._at = -1
        self._broken = self._closed = False
        self._stepping = threading.Lock()
        self._store = _store(token)
        self._batch = Batch(plan, self.rank, chunk_spec, variable_shapes, self._store)
        self._watch = Watch(self._store, self.rank, plan.ranks, self._place)

    # What the program comes down to

    def _make_cells(self):
        self._cells = {}
        for i in self._program.instructions:
            for key in (forward_cell(i), back_cell(i)):
                if key is not None and key not in self._cells:
                    self._cells[key] = Cell(*key, key in self._program.again)
        for (s, m), cell in self._cells.items():
            following = self._cells.get((s + 1, m))
            if following is not None:
                cell.next, following.back = following, cell
        ordered = sorted(self._cells.items(), key=lambda item: item[0][1])
        self._first = [cell for (s, _), cell in ordered if s == 0]
        self._last = [cell for (s, _), cell in ordered if s == self.plan.stages - 1]

    def _make_operations(self):
        """The closures that a step calls: (waiting or None, work), and by operation its instruction."""
        program = self._program.instructions
        self._works = [()] * len(program)  # by instruction: messages under way
        self._edges = {}
        self._operations, self._index_of, self._labels = [], [], []
        for at in _posting_order(program):
            awaited = self._program.needs[at] + self._program.arrived[at]
            self._operations.append((self._waiting(awaited), self._work(at, program[at])))
            self._index_of.append(at)
            self._labels.append("PP:" + plans.torch_cell(program[at]))
            complete = self._program.complete[at]
            if complete is not None and program[at].op != "REDUCE":
                self._operations.append((None, self._sums[complete].start))
                self._index_of.append(at)
                self._labels.append(f"PP:{complete}REDUCE_GRAD")
        self._forwards = self._make_forwards()
        self._starts = [0] * len(self._operations)
        self._ends = [0] * len(self._operations)

    def _make_forwards(self):
        """The operations of eval(): what is not of a forward does nothing."""
        forwards, skip = [], lambda: None
        for (waiting, work), at, label in zip(self._operations, self._index_of, self._labels):
            i = self._program.instructions[at]
            if i.op in ("SEND_F", "RECV_F"):
                forwards.append((waiting, work))
            elif i.op in plans.FORWARD and not label.endswith("REDUCE_GRAD"):
                cell = self._cells[forward_cell(i)]
                awaited = [k for k in self._program.needs[at] if self._program.instructions[k].op == "RECV_F"]
                forwards.append((self._waiting(awaited),
                                 functools.partial(self._stages[i.stage].forward_only, cell)))
            else:
                forwards.append((None, skip))
        return forwards

    def _waiting(self, awaited):
        if not awaited:
            return None
        works = self._works

        def waiting():
            for at in awaited:
                for work, _ in works[at]:
                    work.wait()
                works[at] = ()
        return waiting

    def _work(self, at, i):
        if i.op in plans.MESSAGES:
            return self._message(at, i)
        stage = self._stages[i.stage]
        if i.op == "REDUCE":
            return self._sums[i.stage].start
        if i.op == "STEP":
            return lambda: self._step_of(i.stage)
        cell = self._cells[i.stage, i.microbatch]
        if i.op == "FB":
            back, back_of = self._stages[i.back_stage], self._cells[i.back_stage, i.back_microbatch]
            overlap = self._overlap
            return lambda: stage.forward_backward(cell, back, back_of, overlap)
        work = {"F": stage.forward, "R": stage.forward_again, "B": stage.backward_input,
                "W": stage.backward_weight, "BW": stage.backward}[i.op]
        return lambda: work(cell)

    def _message(self, at, i):
        cell, works = self._cells[i.stage, i.microbatch], self._works
        sends = i.op.startswith("SEND")
        ends = (self.rank, i.peer) if sends else (i.peer, self.rank)
        if ends not in self._edges:
            self._edges[ends] = Edge(self.links, *ends, self._device, self._variable_shapes)
        edge, stage = self._edges[ends], i.stage
        if i.op == "SEND_F":
            def work():
                works[at] = edge.send(stage, cell.out)
                cell.out = None
        elif i.op == "RECV_F":
            def work():
                cell.x, works[at] = edge.receive(stage - 1)
        elif i.op == "SEND_B":
            def work():
                works[at] = edge.send_as(cell.dx)
                cell.dx = None
        else:
            def work():
                cell.dy, works[at] = edge.receive_as(cell.y_form)
        return work

    def _step_of(self, stage):
        self._sums[stage].finish()
        if self._on_step is not None:
            self._on_step(stage)

    # A step

    def step(self, *args, target=None, losses=None, return_outputs=False, **kwargs):
        """One step: all micro-batches, forward and backward. Gradients are added to those in `.grad`.

        `args` is the input of the micro-batches whose first stage lives on this rank, `target` the
        target of those whose last stage does, both chunked along dimension 0 into these micro-batches
        in ascending order. With one route that is the whole batch on the first and on the last rank;
        DualPipe's halves start and end at both ends. Elsewhere both are ignored. `kwargs` go to the
        modules of every stage: tensors among them with as many rows as the whole batch are chunked into
        all micro-batches of the plan, all others go whole to each. The same holds inside lists, tuples
        and dicts, there for inputs and targets as well.
        `losses` is filled with the losses of the micro-batches that end here, in ascending order.
        Returns the outputs of the last stage in that order, concatenated, with `return_outputs`, else
        None."""
        if not torch.is_grad_enabled():
            raise RuntimeError("step() trains, and gradients are disabled here: use eval()")
        self._walk(self._operations, args, target, return_outputs, kwargs)
        return self._collect(losses, return_outputs)

    def eval(self, *args, target=None, losses=None, return_outputs=True, **kwargs):
        """The forwards of a step, without gradients, in the order of the plan; arguments as for step().
        Without a target there are outputs and no losses."""
        with torch.no_grad(), without_cast_cache():
            self._walk(self._forwards, args, target, return_outputs, kwargs)
        return self._collect(losses, return_outputs)

    # Around a step

    def rows(self, batch: Any) -> Tuple[Any, Any]:
        """(input, target) for step() on this rank, of a `batch` with all rows: a pair of both, or one value that
        has both. Its tensors, also inside lists, tuples and dicts, are of the micro-batches that start here and
        that end here; None where none does."""
        return self._batch.rows(batch)

    def loss(self, added: bool = False) -> torch.Tensor:
        """The mean loss of the last step or eval over all its micro-batches, the same on every rank; with
        `added` that of what `add_loss` added in any stage of a step. Every process calls it."""
        return self._losses.mean(added)

    def clip_grad_norm_(self, max_norm: Union[float, torch.Tensor], norm_type: float = 2.0) -> torch.Tensor:
        """Scales all gradients so that their norm over all ranks is at most `max_norm`. Returns the norm before,
        the same on every rank. Every process calls it, after the step."""
        return self._state.clip_grad_norm(max_norm, float(norm_type))

    def named_parameters(self) -> Iterator[Tuple[str, torch.nn.Parameter]]:
        """(name in the whole model, parameter) of the stages of this rank, each parameter once."""
        return self.module().named_parameters()

    def module(self) -> torch.nn.Module:
        """A module with the parameters and buffers of this rank under their names in the whole model, for
        state dicts of models and optimizers; it has no forward."""
        return self._state.module()

    def state_dict(self) -> Dict[str, Any]:
        """The parameters and buffers of this rank by their names in the whole model."""
        return self.module().state_dict()

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Takes those of this rank from the state of the whole model, or of any part that has them."""
        self._state.load(state, strict)

    def _walk(self, operations, args, target, return_outputs, kwargs):
        if not self._stepping.acquire(blocking=False):
            raise RuntimeError(f"rank {self.rank}: another thread is in a step of this schedule")
        try:
            if self._broken:
                raise RuntimeError(f"rank {self.rank}: this schedule is closed: make another" if self._closed else
                                   f"rank {self.rank}: an earlier step failed; its messages may still be "
                                   "under way: begin again in a new process")
            self._watch.begin()
            self._at = -1
            self._fill(args, target, return_outputs, kwargs)
            self._losses.begin()
            self._at = 0
            annotated = self._annotate and torch.autograd._profiler_enabled()
            self._run(self._annotated(operations) if annotated else operations)
            self._finish()
        except Exception as error:
            if self._broken or self._refused(error):
                raise
            raise self._failure(error) from error
        except BaseException as stop:
            self._broken = True
            self._watch.fail(repr(stop))
            raise
        finally:
            self._watch.end()
            self._stepping.release()

    def _fill(self, args, target, return_outputs, kwargs):
        inputs, targets, keywords = self._batch.spread(args, target, kwargs)
        for cell, x in zip(self._first, inputs):
            cell.x = x
        if target is not None:
            for cell, part in zip(self._last, targets):
                cell.target = (part,)
        if kwargs:
            for (_, m), cell in self._cells.items():
                cell.kwargs = keywords[m]
        for stage in self._stages.values():
            stage.begin(return_outputs)
        summed_with = {}  # what several stages share is summed once, with the last of them
        for s in self._sums:
            for p in self._stages[s].weights:
                summed_with[p] = s
        for total, places in self._tied.values():
            tied = [self._stages[s].module.get_parameter(name) for s, name in places]
            total.begin([p for p in dict.fromkeys(tied) if summed_with.pop(p, None) is not None])
        for s, total in self._sums.items():
            total.begin([p for p, last in summed_with.items() if last == s])

    def _run(self, operations):
        starts, ends, clock = self._starts, self._ends, time.perf_counter_ns
        for at, (waiting, work) in enumerate(operations):
            if waiting is not None:
                self._at = 2 * at
                waiting()
            self._at = 2 * at + 1
            starts[at] = clock()
            work()
            ends[at] = clock()

    def _annotated(self, operations):
        """The same, each under its name in the profile."""
        def named(label, work):
            def under_name():
                with torch.profiler.record_function(label):
                    work()
            return under_name
        return [(waiting, named(label, work)) for (waiting, work), label in zip(operations, self._labels)]

    def _finish(self):
        self._at = 2 * len(self._operations)
        for at, works in enumerate(self._works):
            if works:
                wait(works)
                self._works[at] = ()
        for total, _ in self._tied.values() if torch.is_grad_enabled() else ():
            total.start()
        for total in (*self._sums.values(), *(total for total, _ in self._tied.values())):
            total.finish()
        for stage in self._stages.values():
            stage.end()
        self._at = -1

    def _collect(self, losses, return_outputs):
        found = [cell.loss for cell in self._last if cell.loss is not None]
        self._losses.end(found)
        if losses is not None and self._last:
            losses[:] = found
        outputs = [cell.output for cell in self._last]
        for cell in self._cells.values():
            cell.forget()
        if not return_outputs or not outputs:
            return None
        return torch.cat(outputs) if torch.is_tensor(outputs[0]) else outputs

    def _refused(self, error):
        """Whether the step never began here; the other ranks, which may be in it, are told."""
        if self._at >= 0:
            return False
        if self.plan.ranks > 1:
            self._broken = True
            self._watch.fail(f"{type(error).__name__}: {error}")
        return True

    def _failure(self, error):
        self._broken = True
        operation = min(max(self._at, 0) // 2, len(self._operations) - 1)
        index = self._index_of[operation]
        instruction = self._program.instructions[index]
        text = f"{type(error).__name__}: {error}"
        report = self._watch.fail(text)
        return StepError(self.rank, index, instruction, text, report)

    def _place(self):
        """What this rank is doing."""
        at = self._at
        if at < 0:
            return "is at the beginning of a step" if self._stepping.locked() else "between steps"
        operation, works = divmod(at, 2)
        if operation >= len(self._operations):
            return "waits at the end of the step for its messages and sums"
        index, program = self._index_of[operation], self._program.instructions
        place = f"{program[index]} (instruction {index} of {len(program)})"
        if works:
            waits = program[index].op in plans.MESSAGES + ("REDUCE", "STEP")
            return f"{'waits' if waits else 'is'} in {place}"
        awaited = [program[k] for k in self._program.needs[index]]
        peers = ", ".join(f"rank {i.peer} ({i})" for i in awaited)
        return f"waits for {peers or 'its messages to leave'} at {place}"

    def trace(self, path):
        """Writes the last step of all ranks as a trace. Every process calls it. Times are of the host: on
        CUDA devices, when work was launched."""
        if not self._ends[-1]:
            raise RuntimeError("there is no step to trace yet")
        rows = trace.spans(self._program.instructions, self._program.needs, self._index_of, self._starts,
                           self._ends)
        trace.write(path, self.plan, self.links, rows)

    def close(self):
        """Gives back the process groups that the schedule made; those of `links=` stay. Nothing runs after
        it. A schedule that is dropped does the same."""
        self._broken = self._closed = True
        self._watch.close()
        self._operations, self._forwards, self._edges, self._sums = [], [], {}, {}
        if self._owns_links:
            self.links.close()

    def sync_parameters(self):
        """Gives all copies of a stage, on both its ranks and in all replicas, the parameters and buffers
        of the first. Every process calls it."""
        copies = [((*stage.module.parameters(), *stage.module.buffers()), plans.holders(self.plan)[s])
                  for s, stage in self._stages.items()]
        copies += [([self._stages[s].module.get_parameter(name) for s, name in places], ranks)
                   for ranks, (_, places) in self._tied.items()]
        for tensors, ranks in copies:
            group = self.links.sum_group(ranks)
            if group is not None:
                first = self.links.members_of(group)[0]
                with torch.no_grad():
                    for tensor in tensors:
                        dist.broadcast(local(tensor), first, group=group)


def _posting_order(program):
    """Indices of the instructions; in a group of messages sends come first, so that a receive that
    has to learn its form cannot hold them up."""
    order, at = [], 0
    while at < len(program):
        end = at + 1
        if program[at].group is not None:
            while end < len(program) and program[end].group == program[at].group:
                end += 1
        order += sorted(range(at, end), key=lambda k: program[k].op.startswith("RECV"))
        at = end
    return order


def _store(token):
    """A place in the job's store."""
    return dist.PrefixStore(f"contraflow/{token}", dist.distributed_c10d._get_default_store())
