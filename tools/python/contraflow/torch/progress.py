"""The place of a GPU in a step that the host has issued: an event after each operation."""

from __future__ import annotations

import time
from typing import Any, Dict, Hashable, List, Optional, Sequence, Tuple

import torch


class Progress:
    """Events of the operations of a program, reused by each step.

    api             what has the streams of the device
    lanes           lane of each operation; those of a lane run in their order
    timing_every    time each operation of every so many steps (0: never)
    """

    def __init__(self, api: Any, device: torch.device, lanes: Sequence[Hashable], timing_every: int):
        self._api, self._device, self._every = api, device, timing_every
        self.events = [api.Event() for _ in lanes]  # the end of each operation
        self._of_lane: Dict[Hashable, List[int]] = {}
        for position, lane in enumerate(lanes):
            self._of_lane.setdefault(lane, []).append(position)
        self._step, self._issued = 0, 0
        self._reached: Dict[Hashable, int] = {}  # by lane: how many of its operations are known to be done
        self._seen: Tuple[int, ...] = ()
        self._since = time.monotonic()
        self._timing = False
        self._base: Any = None  # an event with timing, and when it was on the clock of the host
        self._base_ns = 0
        self._begins: List[Any] = []
        self._ends: List[Any] = []

    def begin(self, trains: bool) -> None:
        """Before the first operation of a step."""
        self._issued, self._reached = 0, {}
        self._step += 1 if trains else 0
        self._timing = trains and self._every > 0 and self._step % self._every == 0
        if self._timing:
            if self._base is None:
                count = len(self.events)
                self._base = self._api.Event(enable_timing=True)
                self._begins, self._ends = ([self._api.Event(enable_timing=True) for _ in range(count)] for _ in "be")
            self._base.record(self._api.current_stream(self._device))
            self._base.synchronize()
            self._base_ns = time.perf_counter_ns()

    def before(self, position: int, stream: Any) -> None:
        """Called before an operation is issued, after its waits."""
        if self._timing:
            self._begins[position].record(stream)

    def after(self, position: int, stream: Any) -> None:
        """An operation has been issued."""
        if self._timing:
            self._ends[position].record(stream)
        self.events[position].record(stream)
        self._issued = position + 1

    def places(self) -> List[int]:
        """The first operation of each lane that is issued and not done."""
        places = []
        for lane, positions in self._of_lane.items():
            at = self._reached.get(lane, 0)
            while at < len(positions) and positions[at] < self._issued and self.events[positions[at]].query():
                at += 1
            self._reached[lane] = at
            if at < len(positions) and positions[at] < self._issued:
                places.append(positions[at])
        return places

    def stands_for(self) -> float:
        """For how many seconds the GPU has stood where it is, as far as this was asked; 0: it waits for the host."""
        now = (self._step, *self.places())
        if len(now) == 1 or now != self._seen:
            self._seen, self._since = now, time.monotonic()
            return 0.0
        return time.monotonic() - self._since

    def times(self) -> Optional[Tuple[List[int], List[int]]]:
        """When each operation of the last step with timing began and ended, in ns of the host's performance
        counter; None before there was one. Waits for that step."""
        if self._base is None:
            return None
        for event in self._ends:
            event.synchronize()
        return tuple([self._base_ns + int(1e6 * self._base.elapsed_time(event)) for event in events]
                     for events in (self._begins, self._ends))  # type: ignore[return-value]
