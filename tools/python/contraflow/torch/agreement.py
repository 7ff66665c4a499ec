"""The agreement of all processes before the first step: arguments that differ or cannot run are refused."""

from __future__ import annotations

import dataclasses
import types
import uuid
import warnings
import zlib
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

import torch
import torch.distributed as dist

import contraflow as cf

from . import program as plans
from .batch import ChunkSpec, check_chunk_spec
from .layers import Layers, extra_layers, kind_of
from .links import default_device, members
from .local import AnyLinks
from .reduce import spread_parameters
from .sharded import check_sharded, is_sharded
from .stage import Overlap

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel")


@dataclasses.dataclass
class Arguments:
    """The arguments of a PlanSchedule that its check needs, as this process has them."""

    plan: cf.Plan
    rank: int
    ranks: List[int]
    replicas: List[int]
    experts: List[int]
    stages: Dict[int, torch.nn.Module]
    loss_fn: Optional[Callable[..., Any]]
    weight_grad: str
    data_parallel: Optional[dist.ProcessGroup]
    grad_reduce: Optional[Callable[[int, torch.nn.Module], Any]]
    on_step: Optional[Callable[[int], Any]]
    overlap: Optional[Overlap]
    device: Union[torch.device, str, None]
    links: Optional[AnyLinks]
    chunk_spec: Optional[ChunkSpec]
    options: Dict[str, Any]  # others that all processes must have alike

    def __post_init__(self) -> None:
        self.options = dict(self.options, weight_grad=self.weight_grad, chunk_spec=self.chunk_spec,
                            grad_reduce=self.grad_reduce and "given", on_step=self.on_step and "given")
        self.shared: List[List[Tuple[int, int]]] = []
        self.tied: Dict[Tuple[int, str], Tuple[Tuple[int, str], ...]] = {}
        self.spread: Dict[int, List[Tuple[Any, ...]]] = {}

    def check(self) -> None:
        """Raises ValueError or TypeError, with the remedy, for what this process alone can see."""
        plan = self.plan
        if not isinstance(plan, cf.Plan):
            raise TypeError(f"plan must be a contraflow.Plan, as contraflow.Plan.load returns it, is a {type(plan).__name__}")
        plans.check(plan)
        if not isinstance(self.stages, dict) or not all(isinstance(s, int) for s in self.stages):
            wrong = [s for s in self.stages if not isinstance(s, int)] if isinstance(self.stages, dict) else []
            raise TypeError("stages must be a dict from the number of each stage to its torch.nn.Module, "
                            + (f"has the key {wrong[0]!r}" if wrong else f"is a {type(self.stages).__name__}"))
        if self.loss_fn is not None and not callable(self.loss_fn):
            raise TypeError(f"loss_fn must be called as loss_fn(output, target), is a {type(self.loss_fn).__name__}")
        timeout = self.options["timeout"]
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
            raise ValueError(f"timeout must be a number of seconds above 0, is {timeout!r}")
        plan.verify()
        if len(self.ranks) != plan.ranks:
            raise ValueError(f"the plan is for {plan.ranks} ranks, the group has {len(self.ranks)} "
                             "processes")
        held = sorted({s for route in plan.routes for s, at in enumerate(route.ranks)
                       if at == self.rank})
        if sorted(self.stages) != held:
            raise ValueError(f"rank {self.rank} holds stages {held} of the plan, but stages has modules "
                             f"for {sorted(self.stages)}")
        if plan.stages - 1 in held and self.loss_fn is None:
            raise ValueError(f"rank {self.rank} has the last stage and needs a loss_fn")
        if self.weight_grad not in ("autograd", "store"):
            raise ValueError(f"weight_grad must be \"autograd\" or \"store\", is {self.weight_grad!r}")
        if self.data_parallel is not None and self.grad_reduce is not None:
            raise ValueError("data_parallel and grad_reduce both sum over replicas: give one of them")
        check_chunk_spec(self.chunk_spec)
        sharded = all(isinstance(m, torch.nn.Module) and is_sharded(m) for m in self.stages.values())
        if plan.data_parallel > 1 and self.grad_reduce is None and not sharded and (
                len(self.replicas) != plan.data_parallel):
            raise ValueError(f"the plan is for {plan.data_parallel} replicas: pass data_parallel=, a group "
                             f"of as many processes, or grad_reduce= (there are {len(self.replicas)})")
        kinds = plans.layer_kinds(plan.programs[self.rank])
        for stage, module in self.stages.items():
            self._check_module(stage, module)
            if kinds:
                self._check_layers(stage, module, kinds[stage])
        device = torch.device(self.device or default_device(self.stages.values()))
        if device.type == "cuda" and device.index not in (None, torch.cuda.current_device()):
            raise ValueError(f"rank {self.rank} has its modules on {device}, and the current device is cuda:"
                             f"{torch.cuda.current_device()}: call torch.cuda.set_device({device.index}) first")
        self._check_experts()
        self.shared = _shared(plan, self.rank, self.stages)
        self._check_shared()
        self._check_tied()

    def _check_module(self, stage: int, module: torch.nn.Module) -> None:
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"stage {stage} must be a torch.nn.Module, is a {type(module).__name__}")
        for name, part in module.named_modules():
            place = f"stage {stage}{name and f' ({name})'}"
            wrapper = next((c.__name__ for c in type(part).__mro__ if c.__name__ in _WRAPPERS
                            and c.__module__.startswith("torch.")), None)
            if wrapper is not None:
                raise ValueError(f"{place} is wrapped in {wrapper}, which sums gradients in each "
                                 "micro-batch: give the bare module, and data_parallel= or grad_reduce= for "
                                 "the sum over replicas, or shard it with fully_shard")
            if is_sharded(part) and not is_sharded(module):
                raise ValueError(f"{place} is sharded with fully_shard, but not the stage as a whole: "
                                 "fully_shard the module of the stage, too")
        if is_sharded(module):
            check_sharded(f"stage {stage}", module, self.plan, data_parallel=self.data_parallel,
                          grad_reduce=self.grad_reduce)

    def _check_layers(self, stage: int, module: torch.nn.Module, kinds: str) -> None:
        if not isinstance(module, Layers):
            raise TypeError(f"stage {stage} must be a list of layers, for the plan is of level component; is a "
                            f"{type(module).__name__}")
        try:
            extra_layers(module, kinds, stage == 0, stage == self.plan.stages - 1)
        except ValueError as error:
            raise ValueError(f"stage {stage}: {error}") from None
        if is_sharded(module) or any(map(is_sharded, module.modules())):
            raise ValueError(f"stage {stage} has layers sharded with fully_shard, which cannot gather them for a "
                             "part: give bare layers, or compile the plan with level=\"comm\"")
        for name, value, remedy in (("weight_grad", self.weight_grad == "store", "leave it out, or take level comm"),
                                    ("overlap", self.overlap is not None, "leave it out: the components overlap")):
            if value:
                raise ValueError(f"{name}= is for whole stages, and the plan is of level component: {remedy}")

    def _check_experts(self) -> None:
        count = len(self.experts)
        me = self.ranks[self.rank]
        if me not in self.experts:
            raise ValueError(f"process {me} is not in expert_parallel, which has {self.experts}: give each "
                             "process the group that it is in")
        if count > 1 and count != self.plan.expert_parallel:
            raise ValueError(f"expert_parallel has {count} processes, and the plan is for {self.plan.expert_parallel}"
                             f": compile it with expert_parallel={count}")
        if self.links is not None and self.links.experts != self.experts:
            raise ValueError(f"expert_parallel has the processes {self.experts}, and links= those of "
                             f"{self.links.experts}: make Links with the same expert_parallel=")
        for stage, module in self.stages.items():
            if count > 1 and is_sharded(module):
                raise ValueError(f"stage {stage} is sharded with fully_shard, over a mesh without the processes of "
                                 "expert_parallel: give the bare module, and data_parallel= for replicas")
            for part in module.modules():
                group = getattr(part, "expert_group", None)
                if group is not None and members(group) != self.experts:
                    raise ValueError(f"stage {stage} has experts over the processes {members(group)}, and "
                                     f"expert_parallel has {self.experts}: pass their group as expert_parallel=")
            spread = spread_parameters(module)
            for at, layer in enumerate(module if isinstance(module, Layers) else ()):
                if count > 1 and kind_of(layer) == "m" and spread.isdisjoint(layer.parameters()):
                    raise ValueError(f"stage {stage}, layer {at} is an MoE layer that names no parameters of experts, "
                                     "and those of all processes of expert_parallel would be averaged: give it "
                                     "expert_parameters(), or its experts' parameters the attribute expert = True")
            self.spread[stage] = [(p in spread, *p.shape) for p in module.parameters()] if spread else []
        if count == 1 and self.plan.expert_parallel > 1 and self.grad_reduce is None:
            raise ValueError(f"the plan is for experts over {self.plan.expert_parallel} processes, whose gradients "
                             "have to be summed: pass expert_parallel=, a group of as many processes, or grad_reduce=, "
                             "or compile it with expert_parallel=1")

    def _check_shared(self) -> None:
        holders = plans.holders(self.plan)
        for uses in self.shared:
            held_by = [holders[s] for s, _ in uses]
            text = f"stages {' and '.join(str(s) for s, _ in uses)} of rank {self.rank} share a parameter"
            if any(ranks != held_by[0] for ranks in held_by):
                raise ValueError(f"{text}, but other ranks hold them ({held_by}), so that its gradient has "
                                 "no group to be summed over: give each stage a parameter of its own")
            if self.grad_reduce is not None or self.on_step is not None:
                raise ValueError(f"{text}, whose gradient is complete with the last of them: leave out "
                                 "grad_reduce and on_step, which take one stage after the other, and do "
                                 "their work after step()")

    def _check_tied(self) -> None:
        holders = plans.holders(self.plan)
        self.tied = {(s, name): tuple(places) for s, module in self.stages.items()
                     for name, places in getattr(module, "tied_parameters", {}).items()}
        for (s, name), places in self.tied.items():
            text = f"stage {s}: tied_parameters[{name!r}] = {places}"
            if (s, name) not in places or any(not 0 <= at < self.plan.stages for at, _ in places):
                raise ValueError(f"{text} must be all (stage, name) of one parameter, this one among them")
            own = [self.stages[at].get_parameter(n) for at, n in places if at in self.stages]
            if any(p is not own[0] for p in own):
                raise ValueError(f"{text}: rank {self.rank} holds several of them: give these one Parameter")
            held = [set(holders[at]) for at, _ in places]
            if any(a != b and a & b for a in held for b in held):
                raise ValueError(f"{text}: ranks {[sorted(h) for h in held]} hold them, of which some have all and "
                                 "some do not: give each stage a parameter of its own")
            if self.grad_reduce is not None or self.on_step is not None:
                raise ValueError(f"{text}: its gradient is complete at the end of the step: leave out grad_reduce "
                                 "and on_step, and do their work after step()")


def _shared(plan: cf.Plan, rank: int, stages: Mapping[int, torch.nn.Module]) -> List[List[Tuple[int, int]]]:
    """[(stage, its place in the module)] of each parameter that several stages of the rank have, the
    stage whose gradients are complete last at the end."""
    uses: Dict[torch.nn.Parameter, List[Tuple[int, int]]] = {}
    for s in plans.completion_order(plan.programs[rank]):
        for place, p in enumerate(stages[s].parameters()):
            uses.setdefault(p, []).append((s, place))
    return [found for found in uses.values() if len(found) > 1]


def agree(arguments: Arguments, gather: Callable[[Any], List[Any]]) -> Tuple[str, str]:
    """Checks the arguments of all processes together, so that none waits for one that refuses its own,
    that a pipeline has one plan, that it and its replicas have the same options, and that copies of stages
    share the same parameters. gather(value) returns the values of all processes. Returns a name
    for the schedule of this pipeline, and one for those of all pipelines that wait for each other."""
    problem: Optional[Exception] = None
    try:
        arguments.check()
    except (ValueError, TypeError) as error:
        problem = error
    name, text = "none", ""
    if problem is None:
        plan = arguments.plan
        name = f"{plan.schedule}, {plan.microbatches} micro-batches"
        text = "\n".join(str(i) for program in plan.programs for i in program)
    said = gather(types.SimpleNamespace(
        problem=problem and str(problem), name=name, plan=zlib.crc32(text.encode()), token=uuid.uuid4().hex,
        ranks=arguments.ranks, replicas=arguments.replicas, experts=arguments.experts, options=arguments.options,
        stages=[] if problem else sorted(arguments.stages), shared=arguments.shared, tied=arguments.tied,
        spread=arguments.spread))
    if problem is not None:
        raise problem
    mine = said[arguments.ranks[arguments.rank]]
    linked = {*mine.ranks}  # this pipeline, its replicas and those that share its experts, and theirs
    found: Set[int] = set()
    while linked != found:
        found = set(linked)
        linked.update(other for at in found for other in (*said[at].ranks, *said[at].replicas, *said[at].experts))
    for at in sorted(linked):
        if said[at].problem is not None:
            raise ValueError(f"process {at}: {said[at].problem}")
    for rank, at in enumerate(mine.ranks):
        if said[at].plan != mine.plan:
            raise ValueError(f"rank {rank} has another plan ({said[at].name}) than rank {arguments.rank} ({mine.name}): "
                             "give all ranks the same plan file, or the same options of compile")
    first = min(linked)
    for at in sorted(linked):
        for name, value in said[first].options.items():
            if said[at].options[name] != value:
                raise ValueError(f"process {at} has {name}={said[at].options[name]}, process {first} has "
                                 f"{name}={value}: give all processes the same")
    for at in sorted(linked):
        ranks = said[at].ranks
        for other in said[at].replicas:
            if other != at and (other in ranks or said[other].ranks.index(other) != ranks.index(at)):
                raise ValueError(f"process {other}, which is in data_parallel of process {at}, does not hold the same "
                                 "rank of another pipeline: give each process the group of those that do")
    _agree_on_experts(said, linked)
    for at, its in enumerate(said):
        for other in {*its.ranks, *its.replicas}:
            _agree_on_parameters(at, its, other, said[other])
    return said[mine.ranks[0]].token, said[first].token


def _agree_on_parameters(at: int, its: Any, other: int, theirs: Any) -> None:
    """Copies of stages have the same parameters in common."""
    for places in its.tied.values():
        for stage, name in places:
            if stage in theirs.stages and theirs.tied.get((stage, name)) != places:
                raise ValueError(f"process {at} ties {places}, and process {other}, which holds stage {stage}, "
                                 f"{theirs.tied.get((stage, name))}: give both the same tied_parameters")
    common = {*its.stages} & {*theirs.stages}
    if its.shared and _among(common, its.shared) != _among(common, theirs.shared):
        raise ValueError(f"processes {at} and {other} hold stages {sorted(common)} and must share "
                         "the same parameters between them, complete in the same order")


def _agree_on_experts(said: Sequence[Any], linked: Set[int]) -> None:
    """Processes that share experts must call their exchanges in one order, and have the same parameters."""
    place = {at: said[at].experts.index(at) for at in linked}
    for at in sorted(linked):
        its = said[at]
        for other in (*its.ranks, *its.replicas):
            if place[other] != place[at]:
                raise ValueError(f"process {other} is at place {place[other]} of its expert_parallel, and process {at}"
                                 f", of the same pipeline or another replica of it, at place {place[at]}: give both "
                                 "the same experts")
        for other in its.experts:
            text, theirs = f"process {other}, which is in expert_parallel of process {at},", said[other]
            if theirs.experts != its.experts:
                raise ValueError(f"{text} has expert_parallel={theirs.experts}, and not {its.experts}: give each "
                                 "process the group that it is in")
            if theirs.ranks.index(other) != its.ranks.index(at) or theirs.plan != its.plan:
                raise ValueError(f"{text} is rank {theirs.ranks.index(other)} of its pipeline and process {at} rank "
                                 f"{its.ranks.index(at)}, or their plans differ: expert_parallel is for the same rank "
                                 "of pipelines with the same plan")
            for stage, parameters in its.spread.items():
                if theirs.spread[stage] != parameters:
                    raise ValueError(f"{text} has other parameters or experts in stage {stage}: give all processes of "
                                     "the group the same layers, with as many experts on each")


def _among(stages: Set[int], shared: Sequence[Any]) -> List[Any]:
    return [uses for uses in shared if uses[0][0] in stages]


def warn_of_statistics(plan: cf.Plan, rank: int, stages: Mapping[int, torch.nn.Module]) -> None:
    """Once for a schedule: BatchNorm's running statistics come out other than in one process."""
    again = {i.stage for i in plan.programs[rank] if i.op == "R"}
    holders = plans.holders(plan)
    for s, module in stages.items():
        if any(isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and part.track_running_stats
               for part in module.modules()):
            reason = ("its forward runs twice, so they are updated twice" if s in again else
                      f"each of ranks {holders[s]} sees its own micro-batches alone")
            if s in again or len(holders[s]) > 1:
                warnings.warn(f"stage {s} has BatchNorm, and {reason}: its running statistics will not be "
                              "those of one process", stacklevel=3)
                return
