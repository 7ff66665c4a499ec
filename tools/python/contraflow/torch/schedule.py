"""PlanSchedule: one rank's program, walked with modules as stages."""

from __future__ import annotations

import os
import threading
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist

import contraflow as cf

from . import program as plans
from . import trace
from .agreement import Arguments, agree, warn_of_statistics
from .batch import Batch, ChunkSpec
from .copies import Copies
from .layered_stage import LayeredStage
from .layers import Layers
from .links import Links, default_device, gather, members
from .local import AnyLinks
from .losses import Losses
from .program import RankProgram
from .reduce import GradientSum, spread_parameters, tied_ranks
from .sharded import local
from .stage import Overlap, Stage, without_cast_cache
from .state import Names, State
from .walk import Operations, Walk
from .watch import StepError, Watch, described

StageLike = Union[torch.nn.Module, Sequence[torch.nn.Module]]  # a list has the layers of a stage


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
    expert_parallel the processes that hold this rank in the pipelines that share its experts; gradients are
                    averaged over them, but those of parameters that are spread over them: `expert_parameters()`
                    of layers, and what has the attribute `expert`
    grad_reduce     instead of data_parallel: grad_reduce(stage, module), called where the gradients of a stage are
                    complete and summed over the ranks of this pipeline that hold it, and over expert_parallel
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
    timing_every    on a GPU: time each instruction there in every so many steps, for trace() (0: never)
    """

    def __init__(self, plan: cf.Plan, stages: Mapping[int, StageLike], loss_fn: Optional[Callable[..., Any]] = None,
                 group: Optional[dist.ProcessGroup] = None, *, overlap: Optional[Overlap] = None,
                 weight_grad: str = "autograd", data_parallel: Optional[dist.ProcessGroup] = None,
                 expert_parallel: Optional[dist.ProcessGroup] = None,
                 grad_reduce: Optional[Callable[[int, torch.nn.Module], Any]] = None, scale_grads: bool = True,
                 on_step: Optional[Callable[[int], Any]] = None, variable_shapes: bool = False,
                 keep_rng: bool = True, timeout: float = 300.0, annotate: bool = True,
                 links: Optional[AnyLinks] = None, device: Union[torch.device, str, None] = None,
                 chunk_spec: Optional[ChunkSpec] = None, names: Optional[Names] = None, timing_every: int = 0) -> None:
        modules: Any = {s: _layers(s, layers) if isinstance(layers, (list, tuple)) else layers
                        for s, layers in stages.items()} if isinstance(stages, dict) else stages
        ranks = members(group) if links is None else links.ranks
        rank = ranks.index(dist.get_rank()) if links is None else links.rank
        replicas = members(data_parallel) if data_parallel is not None else [ranks[rank]]
        experts = members(expert_parallel) if expert_parallel is not None else [ranks[rank]]
        options = {"scale_grads": bool(scale_grads), "variable_shapes": bool(variable_shapes),
                   "keep_rng": bool(keep_rng), "timeout": timeout, "names": names and "given"}
        token, of_all = agree(Arguments(plan, rank, ranks, replicas, experts, modules, loss_fn, weight_grad, data_parallel,
                                grad_reduce, on_step, overlap, device, links, chunk_spec, options),
                      gather if links is None else links.gather)
        holders = plans.holders(plan)
        self._device = torch.device(device) if device is not None else default_device(modules.values())
        self._owns_links = links is None
        tied = tied_ranks(plan, modules)
        if links is None:
            links = Links(plans.edges(plan), {*map(tuple, holders), *tied}, group, data_parallel, timeout,
                          self._device, expert_parallel)
        self.plan, self.rank, self.links = plan, links.rank, links
        warn_of_statistics(plan, self.rank, modules)

        program = RankProgram(plan, self.rank)
        last = plan.stages - 1
        self._stages = {
            s: LayeredStage(s, module, program.kinds[s], s == last, loss_fn, keep_rng) if program.kinds else
            Stage(s, module, s == last, loss_fn, weight_grad, keep_rng)
            for s, module in sorted(modules.items())}
        self._annotate = annotate
        divisor = (plan.microbatches if scale_grads else 1) * len(replicas) * len(experts)
        self._spread = frozenset().union(*map(spread_parameters, modules.values()))
        self._sums = {s: GradientSum(self._stages[s], links.sum_group(holders[s]), divisor, grad_reduce,
                                     self._spread, links.sum_group(holders[s], spread=True))
                      for s in plans.completion_order(plan.programs[self.rank])}
        self._tied = {ranks: (GradientSum(None, links.sum_group(ranks), divisor), places)
                      for ranks, places in sorted(tied.items())}
        self._state = State(links, self._device, dict(sorted(modules.items())), holders, names,
                            self._spread if len(experts) > 1 else frozenset(), expert_parallel)
        self._losses = Losses(links, self._device, plan.microbatches)
        self._walk = Walk(plan, program, self._stages, self._sums, links, self._device,
                          variable_shapes=variable_shapes, overlap=overlap, on_step=on_step,
                          explain=self._failure, timing_every=timing_every)
        self._broken = self._closed = False
        self._stepping = threading.Lock()
        self._store = getattr(dist, "PrefixStore")(f"contraflow/{token}", links.store)
        self._batch = Batch(plan, self.rank, chunk_spec, variable_shapes, self._store)
        progress = self._walk.progress
        alone = len(replicas) == len(experts) == 1
        of_all_store = getattr(dist, "PrefixStore")(f"contraflow/{of_all}/all", links.store)
        process = f"rank {rank}" if alone else f"process {ranks[rank]} (rank {rank} of its pipeline)"
        self._copies: Optional[Copies] = Copies(plan, self.rank, dict(sorted(modules.items())), self._spread, self._store,
                                                of_all_store, process)
        self._watch = Watch(self._store, self.rank, plan.ranks, self._place,
                            progress.stands_for if progress is not None else None, self.links.timeout,
                            of_all_store, process)

    # A step

    def step(self, *args: Any, target: Any = None, losses: Optional[List[torch.Tensor]] = None,
             return_outputs: bool = False, **kwargs: Any) -> Any:
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
        _check_losses(losses)
        if not torch.is_grad_enabled():
            raise RuntimeError("step() trains, and gradients are disabled here: use eval()")
        self._run(self._walk.operations, args, target, return_outputs, kwargs)
        return self._collect(losses, return_outputs)

    def eval(self, *args: Any, target: Any = None, losses: Optional[List[torch.Tensor]] = None,
             return_outputs: bool = True, **kwargs: Any) -> Any:
        """The forwards of a step, without gradients, in the order of the plan; arguments as for step().
        Without a target there are outputs and no losses."""
        _check_losses(losses)
        with torch.no_grad(), without_cast_cache():
            self._run(self._walk.forwards, args, target, return_outputs, kwargs)
        return self._collect(losses, return_outputs)

    # Around a step

    def rows(self, batch: Any) -> Tuple[Any, Any]:
        """(input, target) for step() on this rank, of a `batch` with all rows: a pair of both, or one value that
        has both. Its tensors, also inside lists, tuples and dicts, are of the micro-batches that start here and
        that end here; None where none does."""
        return self._batch.rows(batch)

    def loss(self, added: bool = False) -> torch.Tensor:
        """The mean loss of the last step or eval over all micro-batches of this pipeline, the same on its ranks; NaN
        after an eval without a target. With `added` that of what `add_loss` added in any stage of a step. Every
        process calls it."""
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
        return self._state.state()

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Takes those of this rank from the state of the whole model, or of any part that has them."""
        self._state.load(state, strict)

    def optimizer_state_dict(self, optimizer: torch.optim.Optimizer) -> Dict[str, Any]:
        """Returns what an optimizer has for the parameters of this rank, by their names in the whole model, for
        torch.distributed.checkpoint. Needs torch 2.5."""
        return self._state.optimizer_state(optimizer)

    def load_optimizer_state_dict(self, optimizer: torch.optim.Optimizer, state: Dict[str, Any]) -> None:
        """Gives an optimizer what `optimizer_state_dict` returned."""
        self._state.load_optimizer_state(optimizer, state)

    def _run(self, operations: Operations, args: Tuple[Any, ...], target: Any, return_outputs: bool,
             kwargs: Dict[str, Any]) -> None:
        if not self._stepping.acquire(blocking=False):
            raise RuntimeError(f"rank {self.rank}: another thread is in a step of this schedule")
        try:
            if self._broken:
                raise RuntimeError(f"rank {self.rank}: this schedule is closed: make another" if self._closed else
                                   f"rank {self.rank}: an earlier step failed; its messages may still be "
                                   "under way: begin again in a new process")
            self._watch.begin()
            self._fill(args, target, return_outputs, kwargs)
            self._losses.begin()
            self._walk.begin()
            self._walk.run(operations, self._annotate and _profiling())
            self._finish()
        except Exception as error:
            if self._broken or self._refused(error):
                raise
            raise self._failure(error) from error
        except BaseException as stop:
            self._broken = True
            self._watch.fail(described(stop))
            raise
        finally:
            self._watch.end()
            self._stepping.release()

    def _fill(self, args: Tuple[Any, ...], target: Any, return_outputs: bool, kwargs: Dict[str, Any]) -> None:
        inputs, targets, keywords = self._batch.spread(args, target, kwargs)
        if self._copies is not None and torch.is_grad_enabled():
            copies, self._copies = self._copies, None  # of the first step only
            copies.check_parameters()
            copies.check_rows(inputs)
        for cell, x in zip(self._walk.first, inputs):
            cell.x = x
        if target is not None:
            for cell, part in zip(self._walk.last, targets):
                cell.target = (part,)
        if kwargs:
            for (_, m), cell in self._walk.cells.items():
                cell.kwargs = keywords[m]
        for stage in self._stages.values():
            stage.begin(return_outputs)
        summed_with = {}  # a weight of several stages is summed once, with the last of them
        for s in self._sums:
            for p in self._stages[s].weights:
                summed_with[p] = s
        for total, places in self._tied.values():
            tied = [self._stages[s].module.get_parameter(name) for s, name in places]
            total.begin([p for p in dict.fromkeys(tied) if summed_with.pop(p, None) is not None])
        for s, total in self._sums.items():
            total.begin([p for p, last in summed_with.items() if last == s])

    def _finish(self) -> None:
        self._walk.finish()
        for total, _ in self._tied.values() if torch.is_grad_enabled() else ():
            total.start()
        for total in (*self._sums.values(), *(total for total, _ in self._tied.values())):
            total.finish()
        for stage in self._stages.values():
            stage.end()
        self._walk.end()

    def _collect(self, losses: Optional[List[torch.Tensor]], return_outputs: bool) -> Any:
        found = [cell.loss for cell in self._walk.last if cell.loss is not None]
        self._losses.end(found)
        if losses is not None and self._walk.last:
            losses[:] = found
        outputs: List[Any] = [cell.output for cell in self._walk.last]
        self._walk.forget()
        if not return_outputs or not outputs:
            return None
        return torch.cat(outputs) if torch.is_tensor(outputs[0]) else outputs

    def _refused(self, error: BaseException) -> bool:
        """Whether the step never began here; the other ranks, which may be in it, are told."""
        if self._walk.begun:
            return False
        if self.plan.ranks > 1:
            self._broken = True
            self._watch.fail(described(error))
        return True

    def _failure(self, error: BaseException) -> StepError:
        self._broken = True
        index, instruction = self._walk.failed_at()
        text = described(error)
        report = self._watch.fail(text)
        if self._watch.first is not None:
            text = f"another rank failed first, {self._watch.first}\nhere it was {text}"
        return StepError(self.rank, index, instruction, text, report)

    def _place(self) -> str:
        """The place of this rank in its program, in words."""
        if not self._walk.begun and not self._walk.on_gpu():
            return "is at the beginning of a step" if self._stepping.locked() else "between steps"
        return self._walk.place()

    def trace(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes the last step of all ranks as a trace. Every process calls it. On CUDA devices it is the last
        step with timing (`timing_every`); without one, times are of the host, when work was launched."""
        if not self._walk.ends[-1]:
            raise RuntimeError("there is no step to trace yet")
        trace.write(path, self.plan, self.links, trace.spans(self._walk))

    def close(self) -> None:
        """Gives back the process groups that the schedule made; those of `links=` stay. No step can run after
        it. A schedule that is dropped does the same."""
        self._broken = self._closed = True
        self._watch.close()
        self._walk.close()
        self._sums, self._tied = {}, {}
        if self._owns_links:
            self.links.close()

    def sync_parameters(self) -> None:
        """Gives all copies of a stage, on both its ranks, in all replicas and over the expert group, the
        parameters and buffers of the first. Every process calls it."""
        copies: List[Any] = [((*stage.module.parameters(), *stage.module.buffers()), plans.holders(self.plan)[s])
                             for s, stage in self._stages.items()]
        copies += [([self._stages[s].module.get_parameter(name) for s, name in places], ranks)
                   for ranks, (_, places) in self._tied.items()]
        for tensors, ranks in copies:
            for tensor in tensors:
                group = self.links.sum_group(ranks, self.is_spread(tensor))
                if group is not None:
                    with torch.no_grad():
                        self.links.broadcast(local(tensor), group)

    def is_spread(self, parameter: torch.Tensor) -> bool:
        """Whether each process of `expert_parallel` has another part of a parameter, as of those of experts."""
        return parameter in self._spread


def _check_losses(losses: Any) -> None:
    if losses is not None and not isinstance(losses, list):
        raise TypeError(f"losses must be a list, which the step fills, is a {type(losses).__name__}")


def _layers(stage: int, layers: Sequence[Any]) -> Layers:
    for k, layer in enumerate(layers):
        if not isinstance(layer, torch.nn.Module):
            raise TypeError(f"stage {stage}, layer {k} must be a torch.nn.Module, is a {type(layer).__name__}")
    return Layers(layers)


def _profiling() -> bool:
    """Whether a profiler records this thread, or all of them."""
    return bool(getattr(torch.autograd, "_profiler_enabled")() or
                getattr(torch.autograd.profiler, "_is_profiler_enabled", False))
