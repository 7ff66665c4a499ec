"""The lanes of one rank's component program: what each instruction waits for, and when a tensor is free.

A lane runs its instructions in the order of the program; `after` orders instructions of different lanes.
"""

from __future__ import annotations

from typing import Any, Dict, Hashable, Iterable, List, Optional, Sequence, Tuple

Instruction = Any  # one of contraflow; its operation says which fields it has
COMPUTE_LANE = "compute"
EXCHANGE_LANE = "alltoall"


def lane_of(i: Instruction) -> Hashable:
    """The queue of an instruction: messages have one for each peer and direction. Sums are begun by compute,
    and go on beside it."""
    lane = COMPUTE_LANE if i.lane in (None, "reduce") else i.lane
    return (lane, i.peer) if lane in ("send", "recv") else lane


class LaneOrder:
    """Which instructions of a program are over when another one begins.

    lanes           lane of each instruction
    awaited         by instruction: those of other lanes that it waits for itself
    """

    def __init__(self, program: Sequence[Instruction], awaited: Sequence[Iterable[int]]):
        self.lanes: List[Hashable] = [lane_of(i) for i in program]
        self.awaited: List[Tuple[int, ...]] = [
            tuple(sorted(k for k in before if self.lanes[k] != lane))
            for before, lane in zip(awaited, self.lanes)]
        self._of_lane: Dict[Hashable, List[int]] = {}
        self._free: Dict[Tuple[Hashable, int], Optional[int]] = {}  # answers of free_at, which each step asks again
        latest: Dict[Hashable, Dict[Hashable, int]] = {}
        self._over: List[Dict[Hashable, int]] = []  # by instruction and lane: the last one before it
        for at, lane in enumerate(self.lanes):
            over = dict(latest.get(lane, {}))
            for k in self.awaited[at]:
                for other, index in (*self._over[k].items(), (self.lanes[k], k)):
                    over[other] = max(index, over.get(other, -1))
            self._over.append(over)
            latest[lane] = {**over, lane: at}
            self._of_lane.setdefault(lane, []).append(at)

    def before(self, one: int, other: int) -> bool:
        """Whether instruction `one` is over when `other` begins, however long each takes."""
        return self._over[other].get(self.lanes[one], -1) >= one

    def free_at(self, lane: Hashable, reader: int) -> Optional[int]:
        """The first instruction of a lane that begins after `reader` is over, or None: there memory of the
        lane that `reader` uses may be written again."""
        if (lane, reader) not in self._free:
            self._free[lane, reader] = next((at for at in self._of_lane.get(lane, ())
                                             if at > reader and self.before(reader, at)), None)
        return self._free[lane, reader]


def mark_lane(made: Sequence[Any], read: Sequence[Any], lane: Hashable) -> None:
    """Notes with each tensor that an instruction made which lane its memory is of: that of what it read where it
    is the same memory."""
    of = {_memory(x): x.lane for x in read if hasattr(x, "lane")}
    for y in made:
        if hasattr(y, "data_ptr"):
            y.lane = of.get(_memory(y), lane)


def foreign(read: Sequence[Any], lane: Hashable) -> Dict[Hashable, List[Any]]:
    """The tensors, by lane of their memory, that an instruction of another `lane` read."""
    found: Dict[Hashable, List[Any]] = {}
    for x in read:
        if getattr(x, "lane", lane) != lane:
            found.setdefault(x.lane, []).append(x)
    return found


def _memory(tensor: Any) -> int:
    storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
    return int(storage.data_ptr())
