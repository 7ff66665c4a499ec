"""Ranks as threads of one process, so that one GPU can measure a schedule, and a test needs no processes."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable, Dict, Hashable, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist

from . import lanes
from .links import Links

AnyLinks = Union[Links, "LocalLinks"]
Copy = Tuple[torch.Tensor, Any]  # a value of a rank, and the event after which it is there


class Job:
    """State that the ranks share: values that one puts and another one takes, each once."""

    def __init__(self, ranks: int, timeout: float = 300.0):
        self.ranks, self.timeout = ranks, timeout
        self.store: Any = getattr(dist, "HashStore")()
        self._values: Dict[Hashable, Any] = {}
        self._changed = threading.Condition()
        self._failed: Optional[str] = None

    def put(self, name: Hashable, value: Any) -> None:
        with self._changed:
            self._values[name] = value
            self._changed.notify_all()

    def take(self, name: Hashable) -> Any:
        """Waits until it is there."""
        with self._changed:
            self._changed.wait_for(lambda: name in self._values or self._failed is not None, self.timeout)
            if name in self._values:
                return self._values.pop(name)
        raise RuntimeError(self._failed or f"nothing came within {self.timeout:g} s")

    def fail(self, reason: str) -> None:
        """Ends what the other ranks wait for."""
        with self._changed:
            self._failed = self._failed or reason
            self._changed.notify_all()


class LocalLinks:
    """The links of one rank of a Job, in place of `Links`: edges are queues between threads, and sums are in
    the order of the ranks. A message is copied by who takes it, on the stream that waits for it."""

    def __init__(self, job: Job, rank: int):
        self.rank, self.ranks, self.replicas, self.experts = rank, list(range(job.ranks)), [rank], [rank]
        self.timeout, self.store = job.timeout, job.store
        self._job, self._rounds = job, 0
        self._groups: Dict[Hashable, Any] = {}

    def edge(self, source: int, target: int) -> Tuple[LocalEdge, int]:
        """The edge between two ranks, and the peer of this one."""
        pair = source, target
        return (self._groups.setdefault(pair, LocalEdge(self._job, pair)),
                target if source == self.rank else source)

    headers = edge  # that of the messages

    def sum_group(self, holders: Sequence[int], spread: bool = False) -> Optional[LocalSum]:
        if len(holders) == 1:
            return None
        name = "sum", tuple(sorted(holders))
        group: LocalSum = self._groups.setdefault(name, LocalSum(self._job, self.rank, name[1]))
        return group

    def broadcast(self, tensor: torch.Tensor, group: LocalSum) -> None:
        tensor.copy_(group.copies(tensor)[0])

    def combine(self, tensor: torch.Tensor, op: Any) -> None:
        """Sums a tensor, or takes its maximum, over all ranks."""
        group: Any = self.sum_group(self.ranks)
        if group is not None:
            copies = torch.stack(group.copies(tensor))
            tensor.copy_(copies.amax(0) if op == dist.ReduceOp.MAX else copies.sum(0))

    def gather(self, value: Any) -> List[Any]:
        """The values of all ranks, each of which calls it."""
        self._rounds += 1
        for reader in self.ranks:
            self._job.put(("gather", self._rounds, self.rank, reader), value)
        return [self._job.take(("gather", self._rounds, rank, self.rank)) for rank in self.ranks]

    def close(self) -> None:
        self._groups = {}


class LocalEdge:
    """One end of a directed edge."""

    def __init__(self, job: Job, pair: Tuple[int, int]):
        self._job, self._pair, self._posted = job, pair, 0

    def send(self, tensors: Sequence[torch.Tensor], _peer: int, _tag: int) -> Posted:
        self._posted += 1
        self._job.put((self._pair, self._posted), _copy(tensors[0]))
        return Posted()

    def recv(self, tensors: Sequence[torch.Tensor], _peer: int, _tag: int) -> Posted:
        self._posted += 1
        name, tensor = (self._pair, self._posted), tensors[0]
        return Posted(lambda: _put_into(tensor, [self._job.take(name)]))


class LocalSum:
    """One end of the group that sums the gradients of a stage."""

    def __init__(self, job: Job, rank: int, holders: Tuple[int, ...]):
        self._job, self._rank, self._holders, self._posted = job, rank, holders, 0

    def allreduce(self, tensors: Sequence[torch.Tensor]) -> Posted:
        tensor, take = tensors[0], self._give(tensors[0])
        return Posted(lambda: _put_into(tensor, take()))

    def copies(self, tensor: torch.Tensor) -> List[torch.Tensor]:
        """The tensors of all holders."""
        return [_arrived(copy) for copy in self._give(tensor)()]

    def _give(self, tensor: torch.Tensor) -> Callable[[], List[Copy]]:
        self._posted += 1
        number = self._posted
        for reader in self._holders:
            self._job.put((self._holders, number, self._rank, reader), _copy(tensor))
        return lambda: [self._job.take((self._holders, number, holder, self._rank)) for holder in self._holders]


class Posted:
    """A message or sum under way."""

    def __init__(self, finish: Optional[Callable[[], None]] = None):
        self._finish = finish

    def wait(self) -> None:
        finish, self._finish = self._finish, None
        if finish is not None:
            with torch.no_grad():
                finish()


def _copy(tensor: torch.Tensor) -> Copy:
    api, copy = lanes.streams_of(tensor.device), tensor.detach().clone()
    if api is None:
        return copy, None
    event = api.Event()
    event.record(api.current_stream(tensor.device))
    return copy, event


def _arrived(given: Copy) -> torch.Tensor:
    copy, event = given
    if event is not None:
        stream = lanes.streams_of(copy.device).current_stream(copy.device)
        stream.wait_event(event)
        copy.record_stream(stream)
    return copy


def _put_into(tensor: torch.Tensor, copies: Sequence[Copy]) -> None:
    """The sum of the copies, in their order."""
    tensor.copy_(_arrived(copies[0]))
    for copy in copies[1:]:
        tensor.add_(_arrived(copy))


def run_local(ranks: int, work: Callable[[LocalLinks], Any], *, device: Any = None, timeout: float = 300.0,
              links: Callable[[Job, int], LocalLinks] = LocalLinks) -> List[Any]:
    """Calls work(links) for each rank in a thread of its own, with `links` for its PlanSchedule, and returns
    the results by rank. On a GPU (`device`) each rank has a stream of its own."""
    where = torch.device("cpu" if device is None else device)
    job, results, errors = Job(ranks, timeout), [None] * ranks, []
    api = lanes.streams_of(where)

    def of_rank(rank: int) -> None:
        try:
            with contextlib.ExitStack() as stack:
                if api is not None:
                    # The engine's one thread for a GPU would run the backwards of all ranks one after another.
                    stack.enter_context(torch.autograd.set_multithreading_enabled(False))
                    stack.enter_context(api.device(where))
                    stack.enter_context(api.stream(api.Stream(where)))
                results[rank] = work(links(job, rank))
                if api is not None:
                    api.current_stream(where).synchronize()
        except BaseException as error:
            errors.append(error)
            job.fail(f"rank {rank} failed: {error}")

    threads = [threading.Thread(target=of_rank, args=(rank,), name=f"rank {rank}", daemon=True)
               for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
