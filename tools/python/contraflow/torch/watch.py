"""The place of every rank of a pipeline, for the report when one of them fails or waits too long.

Each rank posts its place in its program to the store of the process group once a second. A rank that fails
leaves the reason there; the others, which may be waiting inside a backend that cannot be woken, print the report
and end their process if the step does not end by itself.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from typing import Any, Callable, List, Optional

from .order import Instruction

PERIOD = 1.0  # seconds between posts
GRACE = 4.0   # seconds that a step has to end by itself after another rank failed


class StepError(RuntimeError):
    """A step failed here: `rank`, `index` and `instruction`, its `stage` and `microbatch` (or None),
    and `report`, what each rank of the pipeline was doing."""

    def __init__(self, rank: int, index: int, instruction: Instruction, cause: str, report: str) -> None:
        self.rank, self.index, self.instruction = rank, index, str(instruction)
        self.stage, self.microbatch = instruction.stage, instruction.microbatch
        self.report = report
        place = f"stage {self.stage}"
        if self.microbatch is not None:
            place += f", micro-batch {self.microbatch}"
        super().__init__(f"rank {rank}, {self.instruction} (instruction {index}; {place}): {cause}"
                         + (f"\n{report}" if report else ""))


def described(error: BaseException) -> str:
    """The type and text of an error, with the remedy that torch does not name."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # its own __str__ fails
        text = f"{type(error).__name__}, whose text cannot be made"
    if "leaf Variable that requires grad" in text and "in-place" in text:
        text += " (a part changes in place what it is given: take a clone() of that first)"
    return text


class Watch:
    """Watches one step after another. `place` is a method that gives what this rank is doing in words;
    the watch ends with its object. On a GPU `stands_for` is one that gives for how many seconds it has stood where it
    is, which is at most `timeout`; elsewhere the wait for a message fails by itself. `of_all` is the store of all
    pipelines that wait for each other, in which this process has a `name` of its own."""

    def __init__(self, store: Any, rank: int, ranks: int, place: Callable[[], str],
                 stands_for: Optional[Callable[[], float]] = None, timeout: Optional[float] = None,
                 of_all: Any = None, name: Optional[str] = None) -> None:
        self._store, self._rank, self._ranks = store, rank, ranks
        self._of_all, self._name = store if of_all is None else of_all, name or f"rank {rank}"
        self._place: Callable[[], Any] = weakref.WeakMethod(place)
        self._of_gpu = stands_for and weakref.WeakMethod(stands_for)
        self._timeout: Any = timeout
        self._beat = 0
        self._active = self._failed = False
        self._closed = threading.Event()
        weakref.finalize(getattr(place, "__self__"), self._closed.set).atexit = False
        self._thread: Optional[threading.Thread] = None
        self._reason: Optional[str] = None
        self.first: Optional[str] = None  # the place and reason of another rank that failed before this one
        self._seen: List[List[str]] = []  # activities of all ranks, at most twice: the newest last
        self._post("between steps")

    def begin(self) -> None:
        self._active = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
            _watches.add(self)

    def end(self) -> None:
        self._active = False

    def close(self) -> None:
        """Ends the watch."""
        self._failed = True
        self._closed.set()

    def join(self) -> None:
        """Waits until the watch has ended, but not long for a store that does not answer."""
        if self._thread is not None:
            self._thread.join(2 * PERIOD)

    def fail(self, cause: str) -> str:
        """Tells the other ranks why this one stops, and returns what each was doing."""
        self._active, self._failed = False, True
        place = self._place()()
        lines: List[str]
        before: Optional[List[str]]
        first = False
        try:
            self._post(f"failed: {place}: {cause:.300}".split("\n")[0])
            first = self._of_all.add("failures", 1) == 1
            if first:
                self._of_all.set("reason", f"{self._name} {place}: {cause}")
            self._read()
            if self._ranks > 1:
                # The store often is in the process of rank 0, which stays until the others have read twice.
                time.sleep((2.5 if self._rank > 0 else 3.0) * PERIOD)
            # Stores of torch 1.13 cannot say whether a value is there.
            if not first and getattr(self._of_all, "check", lambda _: True)(["reason"]):
                self._reason = self._of_all.get("reason").decode()
            self._read()
            lines, before = [], self._seen[-2]
        except RuntimeError:
            lines, before = ["  the process that holds the store has ended; before that:"], None
            if not self._seen:
                lines = ["  what the other ranks do is not known: the process that holds the store has ended"]
        if self._reason is not None and not first:
            self.first = self._reason.split("\n")[0]
        for rank, now in enumerate(self._seen[-1] if self._seen else ()):
            text = now.split(" ", 1)[1]
            if before is not None and now == before[rank] and not text.startswith("failed"):
                text = f"no sign of life; last: {text}"
            lines.append(f"  rank {rank}: {text}")
        return "\n".join(lines)

    def _read(self) -> None:
        now = [self._store.get(f"at/{rank}").decode() for rank in range(self._ranks)]
        self._seen = [*self._seen[-1:], now]

    def _post(self, text: str) -> None:
        self._beat += 1
        self._store.set(f"at/{self._rank}", f"{self._beat} {text}")

    def _watch(self) -> None:
        while True:
            if self._closed.wait(PERIOD) or self._failed:
                return
            place = self._place()
            if place is None:
                return
            text = place()
            reason = None
            stands_for = self._stands_for()
            if stands_for > 0 and stands_for > self._timeout:
                late = f"no progress on the GPU for {stands_for:.0f} s"
                _end_process(f"rank {self._rank}: {text}: {late}\n{self.fail(late)}")
            try:
                self._post(text)
                if (self._active or stands_for > 0) and self._of_all.add("failures", 0) > 0:
                    reason = self._reason = self._of_all.get("reason").decode()
                    self._read()
            except RuntimeError:
                if not self._active:  # the job is ending
                    self._thread = None
                    return
                if text.startswith("waits"):
                    reason = "the process that holds the store has ended"
            if reason is not None:
                self._end_unless_it_moves(place, text, reason)
            del place

    def _stands_for(self) -> float:
        of_gpu = self._of_gpu and self._of_gpu()
        return of_gpu() if of_gpu else 0.0

    def _end_unless_it_moves(self, place: Callable[[], str], text: str, reason: str) -> None:
        end = time.monotonic() + GRACE
        while time.monotonic() < end:
            time.sleep(0.1)
            if not self._active and not self._stands_for() or place() != text:
                return
            try:
                self._post(text)
            except RuntimeError:
                pass  # that is the reason
        _end_process(f"rank {self._rank}: {text}\nanother rank failed: {reason}")


_watches: "weakref.WeakSet[Watch]" = weakref.WeakSet()


@atexit.register
def _end_watches() -> None:
    """A thread that the interpreter stops inside a store aborts the process."""
    watches = list(_watches)
    for watch in watches:
        watch.close()
    for watch in watches:
        watch.join()


def _end_process(report: str) -> None:
    sys.stderr.write(f"{report}\nthe step does not end by itself, so this process ends\n")
    sys.stderr.flush()
    os._exit(1)
