"""PlanSchedule: one rank's program, walked with modules as stages."""

import threading

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_flatten, tree_unflatten

from . import program as plans
from . import trace
from .agreement import Arguments, agree, warn_of_statistics
from .layered_stage import LayeredStage
from .layers import Layers
from .links import Links, default_device, gather, members
from .program import RankProgram
from .reduce import GradientSum
from .sharded import local
from .stage import Stage, without_cast_cache
from .walk import Walk
from .watch import StepError, Watch


class PlanSchedule:
    """Runs the steps of a plan over torch.distributed. Every process of the pipeline makes one, with the
    same plan.

    plan            a contraflow.Plan of level comm or component, of any schedule
    stages          {stage: module} for the stages that live on this rank (`plan.stages_of(rank)`). Its
                    output, a tensor or a tuple of tensors, is the next stage's input. At level component
                    {stage: [layer, ..]}, with a MoELayer, DenseLayer or plain module for each layer of the
                    plan; a list of layers runs at level comm, too
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
    timing_every    on a GPU: time each instruction there in every so many steps, for trace() (0: never)
    """

    def __init__(self, plan, stages, loss_fn=None, group=None, *, overlap=None, weight_grad="autograd",
                 data_parallel=None, grad_reduce=None, scale_grads=True, on_step=None,
                 variable_shapes=False, keep_rng=True, timeout=300.0, annotate=True, links=None,
                 device=None, timing_every=0):
        stages = {s: Layers(layers) if isinstance(layers, (list, tuple)) else layers
                  for s, layers in stages.items()} if isinstance(stages, dict) else stages
        ranks = members(group) if links is None else links.ranks
        rank = ranks.index(dist.get_rank()) if links is None else links.rank
        replicas = members(data_parallel) if data_parallel is not None else [ranks[rank]]
        token = agree(Arguments(plan, ranks, replicas, stages, loss_fn=loss_fn, weight_grad=weight_grad,
                                data_parallel=data_parallel, grad_reduce=grad_reduce, on_step=on_step,
                                scale_grads=bool(scale_grads), variable_shapes=bool(variable_shapes),
                                device=device, overlap=overlap, keep_rng=bool(keep_rng), timeout=timeout, rank=rank),
                      gather if links is None else links.gather)
        holders = plans.holders(plan)
        self._device = torch.device(device) if device is not None else default_device(stages.values())
        self._owns_links = links is None
        if links is None:
            links = Links(plans.edges(plan), {tuple(h) for h in holders}, group, data_parallel, timeout,
                          self._device)
        self.plan, self.rank, self.links = plan, links.rank, links
        warn_of_statistics(plan, self.rank, stages)

        program = RankProgram(plan, self.rank)
        last = plan.stages - 1
        self._stages = {
            s: LayeredStage(s, module, program.kinds[s], s == last, loss_fn, keep_rng) if program.kinds else
            Stage(s, module, s == last, loss_fn, weight_grad, keep_rng)
            for s, module in sorted(stages.items())}
        self._variable_shapes, self._annotate = variable_shapes, annotate
        divisor = plan.microbatches if scale_grads else 1
        if data_parallel is not None:
            divisor *= len(replicas)
        self._sums = {s: GradientSum(self._stages[s], links.sum_group(holders[s]), divisor, grad_reduce)
                      for s in plans.completion_order(plan.programs[self.rank])}
        self._walk = Walk(plan, program, self._stages, self._sums, links, self._device,
                          variable_shapes=variable_shapes, overlap=overlap, on_step=on_step,
                          explain=self._explain, timing_every=timing_every)
        self._broken = self._closed = False
        self._stepping = threading.Lock()
        self._store, self._step, self._rows = dist.PrefixStore(f"contraflow/{token}", links.store), 0, None
        self._watch = Watch(self._store, self.rank, plan.ranks, self._place,
                            self._walk.stands_for if self._walk.has_gpu else None, self.links.timeout)

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
        self._run(self._walk.operations, args, target, return_outputs, kwargs)
        return self._collect(losses, return_outputs)

    def eval(self, *args, target=None, losses=None, return_outputs=True, **kwargs):
        """The forwards of a step, without gradients, in the order of the plan; arguments as for step().
        Without a target there are outputs and no losses."""
        with torch.no_grad(), without_cast_cache():
            self._run(self._walk.forwards, args, target, return_outputs, kwargs)
        return self._collect(losses, return_outputs)

    def _run(self, operations, args, target, return_outputs, kwargs):
        if not self._stepping.acquire(blocking=False):
            raise RuntimeError(f"rank {self.rank}: another thread is in a step of this schedule")
        try:
            if self._broken:
                raise RuntimeError(f"rank {self.rank}: this schedule is closed: make another" if self._closed else
                                   f"rank {self.rank}: an earlier step failed; its messages may still be "
                                   "under way: begin again in a new process")
            self._watch.begin()
            self._fill(args, target, return_outputs, kwargs)
            self._walk.begin()
            self._walk.run(operations, self._annotate and torch.autograd._profiler_enabled())
            self._walk.finish()
            for stage in self._stages.values():
                stage.end()
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
        self._check_rows(args, target)
        self._learn_rows(args, target, kwargs)
        columns = [self._spread(x, len(self._walk.first), "the input", True) for x in args if self._walk.first]
        targets = self._spread(target, len(self._walk.last), "target", True) if self._walk.last else []
        parts = {key: self._spread(value, self.plan.microbatches, key) for key, value in kwargs.items()}
        for cell, *x in zip(self._walk.first, *columns):
            cell.x = tuple(x)
        if target is not None:
            for cell, part in zip(self._walk.last, targets):
                cell.target = (part,)
        if kwargs:
            for (_, m), cell in self._walk.cells.items():
                cell.kwargs = {key: column[m] for key, column in parts.items()}
        for stage in self._stages.values():
            stage.begin(return_outputs)
        summed_with = {}  # what several stages share is summed once, with the last of them
        for s in self._sums:
            for p in self._stages[s].weights:
                summed_with[p] = s
        for s, total in self._sums.items():
            total.begin([p for p, last in summed_with.items() if last == s])

    def _check_rows(self, args, target):
        starts, ends = len(self._walk.first), len(self._walk.last)
        if starts and not args:
            raise ValueError(f"rank {self.rank}: step() needs the input of the {starts} micro-batches that "
                             "start here")
        if len(self.plan.routes) == 1 and (starts or ends):
            starts = ends = self.plan.microbatches  # with one route both are of the whole batch
        given = [(f"input {k}", len(x), starts) for k, x in enumerate(args) if starts and _has_rows(x)]
        if ends and _has_rows(target):
            given.append(("target", len(target), ends))
        for name, rows, count in given[1:]:
            # Rows of a target may be tokens: as many for each row of the input.
            multiple = name == "target" and rows * given[0][2] % max(1, given[0][1] * count) == 0 and rows > 0
            if rows * given[0][2] != given[0][1] * count and not multiple:
                raise ValueError(f"rank {self.rank}: {given[0][0]} has {given[0][1]} rows, {name} "
                                 f"has {rows}: give the same rows of both, or a multiple in the target")

    def _learn_rows(self, args, target, kwargs):
        """How many rows all micro-batches of the plan have. A rank on which none starts asks the first one, if
        it has something whose rows count."""
        if self._walk.first:
            given = next((len(x) for x in (*args, *tree_flatten(args)[0]) if _has_rows(x)), 0)
            self._rows = given * self.plan.microbatches // len(self._walk.first)
            if self.plan.routes[0].ranks[0] == self.rank and (self._variable_shapes or self._step == 0):
                self._store.set(f"rows/{self._step}", str(self._rows))
                if self._step > self.plan.ranks:  # no rank is further behind
                    self._store.delete_key(f"rows/{self._step - self.plan.ranks - 1}")
        elif self._variable_shapes or self._rows is None:
            inside = None if torch.is_tensor(target) or not self._walk.last else target
            if any(_has_rows(x) for x in tree_flatten((inside, kwargs))[0]):
                self._rows = int(self._store.get(f"rows/{self._step if self._variable_shapes else 0}"))
        self._step += 1

    def _spread(self, value, count, name, always=False):
        """What each of `count` micro-batches gets: tensors with the rows of the batch are chunked, and with
        `always` any that is the value itself; all else goes whole to each."""
        rows = self._rows and self._rows * count // self.plan.microbatches
        leaves, form = tree_flatten(value)
        columns = []
        for leaf in leaves:
            if torch.is_tensor(leaf) and leaf.requires_grad and torch.is_grad_enabled():
                raise ValueError(f"rank {self.rank}: {name} requires a gradient, and step() gives gradients to "
                                 "parameters of stages alone: detach() it, or move what makes it into a stage")
            chunked = _has_rows(leaf) and len(leaf) == rows or always and torch.is_tensor(value)
            columns.append(self._chunks(leaf, count, name) if chunked else [leaf] * count)
        return [tree_unflatten([column[m] for column in columns], form) for m in range(count)]

    def _chunks(self, value, count, name):
        has = f"rank {self.rank}: {name} has shape {list(value.shape)}, which does not chunk into {count} "
        if value.dim() == 0 or len(value) < count:
            raise ValueError(has + "micro-batches along dimension 0")
        if len(value) % count != 0 and not self._variable_shapes:
            raise ValueError(has + "micro-batches of the same size: leave the last batch out (drop_last of a "
                             "DataLoader), or pass variable_shapes=True")
        return value.detach().tensor_split(count)

    def _collect(self, losses, return_outputs):
        if losses is not None and self._walk.last:
            losses.clear()
            losses.extend(cell.loss for cell in self._walk.last if cell.loss is not None)
        outputs = [cell.output for cell in self._walk.last]
        self._walk.forget()
        if not return_outputs or not outputs:
            return None
        return torch.cat(outputs) if torch.is_tensor(outputs[0]) else outputs

    def _refused(self, error):
        """Whether the step never began here; the other ranks, which may be in it, are told."""
        if self._walk.begun:
            return False
        if self.plan.ranks > 1:
            self._broken = True
            self._watch.fail(f"{type(error).__name__}: {error}")
        return True

    def _failure(self, error):
        self._broken = True
        index, instruction = self._walk.failed_at()
        text = f"{type(error).__name__}: {error}"
        report = self._watch.fail(text)
        return StepError(self.rank, index, instruction, text, report)

    def _explain(self, _, error):
        return str(self._failure(error))

    def _place(self):
        """What this rank is doing."""
        if not self._walk.begun and not self._walk.on_gpu():
            return "is at the beginning of a step" if self._stepping.locked() else "between steps"
        return self._walk.place()

    def trace(self, path):
        """Writes the last step of all ranks as a trace. Every process calls it. On CUDA devices it is the last
        step with timing (`timing_every`); without one, times are of the host, when work was launched."""
        if not self._walk.ends[-1]:
            raise RuntimeError("there is no step to trace yet")
        trace.write(path, self.plan, self.links, trace.spans(self._walk))

    def close(self):
        """Gives back the process groups that the schedule made; those of `links=` stay. Nothing runs after
        it. A schedule that is dropped does the same."""
        self._broken = self._closed = True
        self._watch.close()
        self._walk.close()
        self._sums = {}
        if self._owns_links:
            self.links.close()

    def sync_parameters(self):
        """Gives all copies of a stage, on both its ranks and in all replicas, the parameters and buffers
        of the first. Every process calls it."""
        for s, stage in self._stages.items():
            group = self.links.sum_group(plans.holders(self.plan)[s])
            if group is not None:
                with torch.no_grad():
                    for tensor in (*stage.module.parameters(), *stage.module.buffers()):
                        self.links.broadcast(local(tensor), group)


def _has_rows(value):
    return torch.is_tensor(value) and value.dim() > 0
