"""Lanes that run at the same time: threads on a CPU, streams on a GPU.

Either way an operation begins after the one before it on its lane and after those of other lanes that it waits
for, and a tensor of another lane lives until that lane has gone past its reader. So both compute the same bits,
and need the same memory in each step.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import weakref
from queue import SimpleQueue
from typing import Any, Callable, ContextManager, Dict, Hashable, Iterator, List, Optional, Sequence, Tuple

import torch

from . import losses
from .order import COMPUTE_LANE, EXCHANGE_LANE
from .progress import Progress

GRACE = 4.0  # seconds that a step has to end by itself after a lane failed
Run = Callable[[int], None]  # runs the operation at a position


def streams_of(device: torch.device) -> Any:
    """The module with the streams and events of a device: torch.cuda, or None where nothing runs by itself."""
    return torch.cuda if device.type == "cuda" else None


class ThreadLanes:
    """Each lane is a thread; compute is that of the caller.

    lanes           lane of each operation
    awaited         by operation: those of other lanes that it waits for
    explain         explain(error): a report, with what the other ranks were doing when an operation failed
    """

    def __init__(self, lanes: Sequence[Hashable], awaited: Sequence[Sequence[int]],
                 explain: Callable[[BaseException], object]):
        self.lanes, self.awaited, self._explain = list(lanes), [list(k) for k in awaited], explain
        self.failed: Optional[Tuple[int, BaseException]] = None
        self._own: Dict[Hashable, List[int]] = {COMPUTE_LANE: []}
        for position, lane in enumerate(lanes):
            self._own.setdefault(lane, []).append(position)
        self._done = [False] * len(self.lanes)
        self._waited_for = {k for before in self.awaited for k in before}
        self._at: Dict[Hashable, Tuple[int, Optional[int]]] = {}
        self._changed = threading.Condition()
        self._caller_ended = threading.Event()
        self._running = 0  # lanes of this step that have not ended
        self._jobs: Dict[Hashable, SimpleQueue[Optional[Callable[[], None]]]] = {}
        for lane in self._own:
            if lane != COMPUTE_LANE:
                jobs = self._jobs[lane] = SimpleQueue()
                threading.Thread(target=_serve, args=(jobs,), name=f"lane {lane}", daemon=True).start()
        weakref.finalize(self, _end, list(self._jobs.values()))

    def run(self, run: Run) -> None:
        """One step. Raises what an operation raised; `failed` has its position."""
        self.failed, self._done = None, [False] * len(self.lanes)
        self._at = {}
        self._caller_ended.clear()
        self._running, modes = len(self._jobs), _modes()
        for lane, jobs in self._jobs.items():
            jobs.put(functools.partial(self._thread, lane, run, modes))
        try:
            self._lane(COMPUTE_LANE, run)
            with self._changed:
                while self._running and self.failed is None:
                    self._changed.wait()
        except BaseException as error:
            self._fail(self._at.get(COMPUTE_LANE, (len(self.lanes) - 1, None))[0], error)
        finally:
            self._caller_ended.set()
        if self.failed is not None:
            raise self.failed[1]

    def places(self) -> List[Tuple[int, Optional[int]]]:
        """The operation that each lane is at, compute first, and the one that it waits for, or None."""
        return [self._at[lane] for lane in self._own if lane in self._at]

    def _lane(self, lane: Hashable, run: Run) -> None:
        for position in self._own[lane]:
            for other in self.awaited[position]:
                self._at[lane] = position, other
                with self._changed:
                    while not self._done[other] and self.failed is None:
                        self._changed.wait()
            if self.failed is not None:
                return
            self._at[lane] = position, None
            run(position)
            if position in self._waited_for:
                with self._changed:
                    self._done[position] = True
                    self._changed.notify_all()
        self._at.pop(lane, None)

    def _thread(self, lane: Hashable, run: Run, modes: Callable[[], ContextManager[None]]) -> None:
        try:
            with modes():
                self._lane(lane, run)
            with self._changed:
                self._running -= 1
                self._changed.notify_all()
        except BaseException as error:
            self._fail(self._at[lane][0], error)
            # The caller may wait inside a backend that cannot be woken.
            if not self._caller_ended.wait(GRACE):
                sys.stderr.write(f"{self._explain(error)}\n"
                                 "the step does not end by itself, so this process ends\n")
                sys.stderr.flush()
                os._exit(1)

    def _fail(self, position: int, error: BaseException) -> None:
        with self._changed:
            if self.failed is None:
                self.failed = position, error
            self._changed.notify_all()


def _serve(jobs: SimpleQueue[Optional[Callable[[], None]]]) -> None:
    """Runs what a lane has to do in each step. Threads are made once: torch keeps something of each that it has
    seen."""
    while True:
        job = jobs.get()
        if job is None:
            return
        job()
        del job  # it holds the schedule


def _end(lanes: List[SimpleQueue[Optional[Callable[[], None]]]]) -> None:
    for jobs in lanes:
        jobs.put(None)


class StreamLanes:
    """Each lane is a stream of a GPU; compute is the current one. One host thread issues in the order of the
    program, so that an event is recorded before anything waits for it."""

    failed = None

    def __init__(self, lanes: Sequence[Hashable], awaited: Sequence[Sequence[int]], device: torch.device,
                 progress: Progress):
        self.lanes, self.awaited, self._progress = list(lanes), [list(k) for k in awaited], progress
        api = streams_of(device)
        self._device, self._api = device, api
        self._streams = {lane: api.Stream(device, priority=-1 if lane == EXCHANGE_LANE else 0)
                         for lane in dict.fromkeys(lanes) if lane != COMPUTE_LANE}
        self._ends = {lane: api.Event() for lane in (COMPUTE_LANE, *self._streams)}
        self._position = 0
        self._turn, self._compute = api.Event(), api.current_stream(device)

    def run(self, run: Run) -> None:
        """One step: all that it does is issued when this returns."""
        api, current = self._api, self._api.current_stream(self._device)
        streams, self._compute = {**self._streams, COMPUTE_LANE: current}, current
        self._ends[COMPUTE_LANE].record(current)
        for lane, stream in self._streams.items():
            stream.wait_event(self._ends[COMPUTE_LANE])
        for position, lane in enumerate(self.lanes):
            self._position, stream = position, streams[lane]
            with api.stream(stream):
                for other in self.awaited[position]:
                    stream.wait_event(self._progress.events[other])
                run(position)
                self._progress.after(position, stream)
        for lane, stream in self._streams.items():
            self._ends[lane].record(stream)
            current.wait_event(self._ends[lane])

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Enters compute in an operation of another lane, which goes on after it."""
        here, compute = self._api.current_stream(self._device), self._compute
        self._turn.record(here)
        compute.wait_event(self._turn)
        with self._api.stream(compute):
            yield
            self._turn.record(compute)
        here.wait_event(self._turn)

    def places(self) -> List[Tuple[int, Optional[int]]]:
        """The operation that the GPU is at, by lane; that of the host where the GPU waits for it."""
        return [(position, None) for position in self._progress.places() or [self._position]]


def _modes() -> Callable[[], ContextManager[None]]:
    """Returns what enters, in another thread, the modes that torch keeps by thread, as the caller has them."""
    grad, of_step = torch.is_grad_enabled(), losses.current.get()
    cast: List[Tuple[str, Any]] = []
    if hasattr(torch, "get_autocast_dtype"):
        cast = [(device, torch.get_autocast_dtype(device)) for device in ("cpu", "cuda")
                if torch.is_autocast_enabled(device)]
    elif torch.is_autocast_cpu_enabled():
        cast = [("cpu", torch.get_autocast_cpu_dtype())]

    @contextlib.contextmanager
    def entered() -> Iterator[None]:
        with torch.set_grad_enabled(grad), contextlib.ExitStack() as stack:
            losses.current.set(of_step)
            stack.callback(losses.current.set, None)
            for device, dtype in cast:
                stack.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=False))
            yield
    return entered
