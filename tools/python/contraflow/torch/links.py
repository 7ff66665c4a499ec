"""The process groups of a plan, and the messages of one directed edge.

Every directed edge has a group of its own, and so have the ranks that sum the gradients of a stage. No
message waits for one of another edge or direction, and NCCL, which launches in the order of the
program, can at worst serialize it, which the proof of the plan covers.
"""

from __future__ import annotations

import contextlib
import datetime
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple, Union

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from .local import AnyLinks

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
           torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128)
_HEADER = 64  # numbers in a header: how many tensors, then dtype, dimensions and sizes of each
Form = List[Tuple[torch.Size, torch.dtype]]  # of the tensors of a message
Works = List[Tuple[Any, torch.Tensor]]  # messages under way


class Links:
    """The groups that the plans need. All processes make it at the same point, with the same plans.

    edges           directed pairs of ranks of the pipeline
    sums            sets of ranks of the pipeline that hold the same stage
    group           the processes of this pipeline, rank by rank (None: all)
    data_parallel   the processes that hold the same rank of other pipelines (None: only this)
    expert_parallel the processes that share this rank's experts (None: only this)
    timeout         seconds that a message may take
    device          where messages live (None: the current GPU where the backend is NCCL, else the CPU)
    """

    def __init__(self, edges: Iterable[Tuple[int, int]], sums: Iterable[Tuple[int, ...]],
                 group: Optional[dist.ProcessGroup] = None, data_parallel: Optional[dist.ProcessGroup] = None,
                 timeout: float = 300.0, device: Union[torch.device, str, None] = None,
                 expert_parallel: Optional[dist.ProcessGroup] = None) -> None:
        me = dist.get_rank()
        if _discarded:
            torch.cuda.synchronize()
            _destroy(_discarded)
        self.ranks, self._group = members(group), group
        self.rank = self.ranks.index(me)
        self.replicas = members(data_parallel) if data_parallel is not None else [me]
        self.experts = members(expert_parallel) if expert_parallel is not None else [me]
        self.timeout, self.gather = timeout, gather
        self.store = dist.distributed_c10d._get_default_store()
        asked = gather((self.ranks, self.replicas, self.experts, sorted(edges), sorted(sums)))
        # For each process those that hold the same parameters, spread over an expert group (True) or not.
        copies_of = {True: {at: replicas for at, (_, replicas, _, _, _) in enumerate(asked)}}
        copies_of[False] = {at: [r for e in experts for r in copies_of[True][e]]
                            for at, (_, _, experts, _, _) in enumerate(asked)}
        pairs: Set[Tuple[int, int]] = set()
        sets: Set[Tuple[int, ...]] = set()
        for ranks, _, _, their_edges, their_sums in asked:
            pairs.update((ranks[a], ranks[b]) for a, b in their_edges)
            sets.update(_all_holders(ranks, holders, copies) for holders in their_sums
                        for copies in copies_of.values())
        # NCCL ends the process without a report, so the watch of the schedule comes first.
        limit = datetime.timedelta(seconds=timeout + (60.0 if _uses_nccl() else 0.0))
        self._edges: Dict[Tuple[int, int], Any] = {
            pair: dist.new_group(sorted(pair), timeout=limit, pg_options=_options(limit)) for pair in sorted(pairs)}
        self._sums: Dict[Tuple[int, ...], Any] = {}
        for processes in sorted(sets):
            if len(processes) > 1:
                self._sums[processes] = dist.new_group(list(processes), timeout=limit)
        self._copies_of = copies_of
        # The host reads the forms of tensors, so they use gloo: reading them on a GPU would stall
        # it.
        self._headers = dist.new_group(backend="gloo", timeout=limit) if _uses_nccl() else None
        mine = [group for at, group in (*self._edges.items(), *self._sums.items()) if me in at]
        if self._headers is not None:
            mine.append(self._headers)
        self._give_back = weakref.finalize(self, _give_back, mine)
        self._give_back.atexit = False
        self._connect(torch.device(device) if device is not None else default_device(), expert_parallel)

    def _connect(self, device: torch.device, expert_parallel: Optional[dist.ProcessGroup]) -> None:
        """Sends one element over each group, in one order everywhere. NCCL connects at the first message
        of a group, and may hang there while other messages wait on the device."""
        me, element = dist.get_rank(), torch.zeros(1, device=device)
        for pair, group in self._edges.items():
            if me in pair:
                post, peer = (group.send, pair[1]) if me == pair[0] else (group.recv, pair[0])
                _complete(post([element], sorted(pair).index(peer), 0), device)
        for processes, group in self._sums.items():
            if me in processes:
                _complete(group.allreduce([element]), device)
        if len(self.experts) > 1:  # the exchanges of its layers
            sent = torch.zeros(len(self.experts), device=device)
            dist.all_to_all_single(torch.empty_like(sent), sent, group=expert_parallel)

    def close(self) -> None:
        """Gives the process groups back. Links that are dropped do the same."""
        self._edges, self._sums = {}, {}
        self._give_back()

    def edge(self, source: int, target: int) -> Tuple[Any, int]:
        """The group of a directed edge between two ranks of the pipeline, and the place of the peer
        of this rank in it."""
        pair = self.ranks[source], self.ranks[target]
        if pair not in self._edges:
            raise ValueError(f"these links have none from rank {source} to rank {target}: make them "
                             "for all plans that use them")
        peer = pair[1] if pair[0] == dist.get_rank() else pair[0]
        return self._edges[pair], sorted(pair).index(peer)

    def headers(self, source: int, target: int) -> Tuple[Any, int]:
        """The same for the forms of messages."""
        if self._headers is None:
            return self.edge(source, target)
        return self._headers, self.ranks[target if source == self.rank else source]

    def sum_group(self, holders: Sequence[int], spread: bool = False) -> Any:
        """The group over which the gradients of a stage with these holders are added, with all replicas, and
        unless the parameters are `spread` over it with the expert group; None if that is this process alone."""
        processes = _all_holders(self.ranks, holders, self._copies_of[spread])
        if len(processes) > 1 and processes not in self._sums:
            raise ValueError(f"these links have no group for ranks {list(holders)}: make them for all "
                             "plans that use them")
        return self._sums.get(processes)

    def combine(self, tensor: torch.Tensor, op: Any) -> None:
        """Sums a tensor, or takes its maximum, over the ranks of the pipeline."""
        dist.all_reduce(tensor, op, group=self._group)

    def broadcast(self, tensor: torch.Tensor, sum_group: Any) -> None:
        """Gives all of one of the groups for sums what its first process has."""
        processes = next(at for at, group in self._sums.items() if group is sum_group)
        dist.broadcast(tensor, processes[0], group=sum_group)


_discarded: List[Any] = []  # groups of NCCL, which are not destroyed in the middle of anything


def _give_back(groups: List[Any]) -> None:
    """Gives back the groups of links that are dropped or closed."""
    if dist.is_initialized() and _uses_nccl():
        _discarded.extend(groups)
    else:
        _destroy(groups)


def _destroy(groups: List[Any]) -> None:
    while groups:
        with contextlib.suppress(RuntimeError, ValueError, AssertionError):  # the job may have ended them
            dist.destroy_process_group(groups.pop())


def default_device(modules: Iterable[torch.nn.Module] = ()) -> torch.device:
    """The device of messages if no argument says it: that of the modules."""
    for module in modules:
        for tensor in module.parameters():
            return tensor.device
    return torch.device("cuda", torch.cuda.current_device()) if _uses_nccl() else torch.device("cpu")


def _uses_nccl() -> bool:
    config = getattr(dist, "get_backend_config", dist.get_backend)()
    return "nccl" in str(config) and torch.cuda.is_available()


def _options(limit: datetime.timedelta) -> Any:
    """Options of the group of an edge. Messages pass products that wait, and hold two of the processors: NCCL would
    take up to 32, and 12 MiB of memory for each."""
    if not _uses_nccl():
        return None
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options._timeout = limit
    if hasattr(options, "config"):
        options.config.max_ctas = 2
    return options


def _complete(work: Any, device: torch.device) -> None:
    work.wait()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def gather(value: Any) -> List[Any]:
    """The values of all processes, each of which calls it."""
    values: List[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def members(group: Optional[dist.ProcessGroup]) -> List[int]:
    """The processes of a group, in the order of their ranks in it; None: all."""
    if group is None:
        return list(range(dist.get_world_size()))
    if not isinstance(group, dist.ProcessGroup) and group is not dist.GroupMember.NON_GROUP_MEMBER:
        raise TypeError("a group must be a torch.distributed.ProcessGroup that has this process (new_group, or get_group "
                        f"of a DeviceMesh), is a {type(group).__name__}")
    if hasattr(dist, "get_process_group_ranks"):
        return dist.get_process_group_ranks(group)
    to_group: Any = dist.distributed_c10d._pg_group_ranks[group]
    return sorted(to_group, key=to_group.get)


def _all_holders(ranks: Sequence[int], holders: Iterable[int],
                 copies_of: Mapping[int, Iterable[int]]) -> Tuple[int, ...]:
    return tuple(sorted({r for holder in holders for r in copies_of[ranks[holder]]}))


class Edge:
    """This rank's end of a directed edge."""

    def __init__(self, links: AnyLinks, source: int, target: int, device: torch.device, variable_shapes: bool) -> None:
        (group, self._peer), (headers, self._header_peer) = (
            links.edge(source, target), links.headers(source, target))
        sends = source == links.rank
        self._post: Callable[..., Any] = group.send if sends else group.recv
        self._post_header: Callable[..., Any] = headers.send if sends else headers.recv
        self._headers: Works = []  # under way
        self._device, self._variable = device, variable_shapes
        self._forms: Dict[int, Form] = {}  # by stage: the form of its messages, once known to both

    def send(self, stage: int, tensors: Sequence[torch.Tensor]) -> Works:
        """Posts an activation of `stage`, and its form before it where the receiver cannot know it.
        Returns what `wait` takes."""
        form = [(t.shape, t.dtype) for t in tensors]
        known = self._forms.get(stage)
        if known is None or self._variable:
            header = _header(form)
            self._headers.append((self._post_header([header], self._header_peer, 0), header))
            self._forms[stage] = form
        elif known != form:
            raise ValueError(f"stage {stage} gives {_describe(form)}, its first micro-batch gave "
                             f"{_describe(known)}: pass variable_shapes=True")
        return self.send_as(tensors)

    def receive(self, stage: int) -> Tuple[Tuple[torch.Tensor, ...], Works]:
        """Posts the receives of an activation of `stage`, once its form is known. Returns its tensors
        and what `wait` takes."""
        form = self._forms.get(stage)
        if form is None or self._variable:
            header = torch.empty(_HEADER, dtype=torch.int64)
            self._post_header([header], self._header_peer, 0).wait()
            form = self._forms[stage] = _form(header.tolist())
        return self.receive_as(form)

    def send_as(self, tensors: Sequence[torch.Tensor]) -> Works:
        """Posts tensors whose form the receiver knows."""
        works = []
        for t in tensors:
            t = t.contiguous()
            works.append((self._post([t], self._peer, 0), t))
        return works

    def receive_as(self, form: Form) -> Tuple[Tuple[torch.Tensor, ...], Works]:
        tensors = tuple([torch.empty(shape, dtype=dtype, device=self._device)
                         for shape, dtype in form])
        return tensors, [(self._post([t], self._peer, 0), t) for t in tensors]

    def finish(self) -> None:
        """At the end of a step."""
        wait(self._headers)
        self._headers = []


def wait(works: Works) -> None:
    for work, _ in works:
        work.wait()


def _header(form: Form) -> torch.Tensor:
    numbers = [len(form)]
    for shape, dtype in form:
        numbers += [_DTYPES.index(dtype), len(shape), *shape]
    if len(numbers) > _HEADER:
        raise ValueError(f"{_describe(form)} are too many tensors for one message: at most "
                         f"{_HEADER} numbers describe them")
    return torch.tensor(numbers + [0] * (_HEADER - len(numbers)))


def _form(numbers: List[int]) -> Form:
    form: Form = []
    at = 1
    for _ in range(numbers[0]):
        dtype, dims = numbers[at:at + 2]
        form.append((torch.Size(numbers[at + 2:at + 2 + dims]), _DTYPES[dtype]))
        at += 2 + dims
    return form


def _describe(form: Form) -> str:
    return ", ".join(f"{str(dtype)[6:]}{list(shape)}" for shape, dtype in form)
