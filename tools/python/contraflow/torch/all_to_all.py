"""Rows that change places among the processes of an expert group, and tokens on their way to experts and back.

In shapes: T tokens of width D here, K experts for each, N = T K; E experts on P processes, e = E / P of them here;
C is the capacity of an expert.
"""

from __future__ import annotations

import functools
from typing import Any, List, Optional, Tuple

import torch
import torch.distributed as dist

Tensor = torch.Tensor
Splits = Optional[Tuple[List[int], List[int]]]  # rows to and from each process; None: as many for each


class AllToAll:
    """An exchange of rows over a group, whose processes call it in one order. Its backward is the reverse exchange.

    group    the processes, over gloo or NCCL (None, or of one process: rows stay where they are)
    """

    def __init__(self, group: Any = None):
        self.group = group
        self.size = 1 if group is None else dist.get_world_size(group)
        self.rank = 0 if group is None else dist.get_rank(group)
        if self.size < 1:
            raise ValueError(f"process {dist.get_rank()} is not in the group of this AllToAll: give each process "
                             "the group that it is in")

    def splits_of(self, counts: Tensor) -> Tuple[Tensor, Splits]:
        """How many rows of each kind come from each process, [P, ..], and the splits of their exchange, from the
        `counts` [P, ..] that go to each. Exchanges the counts, and waits for them on the host."""
        if self.size == 1:
            return counts, None
        received = _exchanged(counts, self.group, None)
        send, receive = torch.stack([counts, received]).reshape(2, self.size, -1).sum(2).tolist()
        return received, (send, receive)

    def __call__(self, rows: Tensor, splits: Splits = None) -> Tensor:
        """[n, ..] in the order of the processes they go to -> [m, ..] in the order of those they come from."""
        if self.size == 1:
            return rows
        if splits is None and len(rows) % self.size != 0:
            raise ValueError(f"{len(rows)} rows do not divide among {self.size} processes: pass splits")
        exchanged: Tensor = _Exchange.apply(rows, self.group, splits)
        return exchanged


def _exchanged(rows: Tensor, group: Any, splits: Splits) -> Tensor:
    send, receive = (None, None) if splits is None else splits
    out = rows.new_empty((len(rows) if receive is None else sum(receive), *rows.shape[1:]))
    rows, into = rows.contiguous(), out
    if rows.dtype == torch.bfloat16 and not rows.is_cuda:  # unknown to gloo of older releases
        rows, into = rows.view(torch.uint8), out.view(torch.uint8)
    dist.all_to_all_single(into, rows, receive, send, group=group)
    return out


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: Any, splits: Splits) -> Tensor:
        ctx.group, ctx.splits = group, splits
        return _exchanged(rows, group, splits)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, None, None]:
        return _exchanged(grad, ctx.group, ctx.splits and ctx.splits[::-1]), None, None


class _Gather(torch.autograd.Function):
    """Rows by index, and their gradients by the index that leads back: both gather, so that each sum has one
    order. With `padded` an index past the end is a row of zeros."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, back: Tensor, padded: bool) -> Tensor:
        ctx.save_for_backward(back)
        ctx.padded, ctx.uses = padded, len(back) // max(1, len(rows))
        return _rows(rows, index, padded)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, None, None, None]:
        got = _rows(grad, ctx.saved_tensors[0], ctx.padded)
        if ctx.uses > 1:
            got = _added(got.reshape(-1, ctx.uses, got.shape[1]))
        return got, None, None, None


def _rows(rows: Tensor, index: Tensor, padded: bool) -> Tensor:
    if not padded:
        return rows.index_select(0, index)
    if len(rows) == 0:
        return rows.new_zeros(len(index), rows.shape[1])
    outside = (index >= len(rows)).unsqueeze(1)
    return rows.index_select(0, index.clamp(max=len(rows) - 1)).masked_fill_(outside, 0)


def _added(parts: Tensor) -> Tensor:
    """[T, K, D] -> [T, D], in the order of K."""
    return functools.reduce(torch.add, parts.unbind(1))


def gather(rows: Tensor, index: Tensor, back: Tensor, padded: bool = False) -> Tensor:
    """[n, D] -> [m, D]: rows by `index` [m]. `back` [n u] says which of these came from each row: all u of them.
    With `padded`, an index past the end is none: its row is zero."""
    made: Tensor = _Gather.apply(rows, index, back, padded)
    return made


def padding(counts: Tensor, rows: int, capacity: int) -> Tuple[Tensor, Tensor, Tensor]:
    """`rows` in groups of `counts` [g], one group after the other, go to groups of `capacity` places. Returns the
    group of each row; its place [rows], past the last one where its group is full; and the row of each place
    [g capacity], past the last one where there is none."""
    groups = torch.arange(len(counts), device=counts.device)
    group_of = groups.repeat_interleave(counts, output_size=rows)
    starts = counts.cumsum(0) - counts
    within = torch.arange(rows, device=counts.device) - starts[group_of]
    slots = torch.where(within < capacity, group_of * capacity + within, len(counts) * capacity)
    places = torch.arange(capacity, device=counts.device)
    takes = torch.where(places < counts.unsqueeze(1), starts.unsqueeze(1) + places, rows)
    return group_of, slots, takes.flatten()


class TokenDispatcher:
    """Tokens to the experts that they are routed to, and what these made of them back.

    experts    how many there are, E; process p of the group holds those from p e on
    group      as in AllToAll
    capacity   how many rows of one process an expert takes, C (None: all). Then all shapes are known and the host
               waits for nothing; tokens beyond it, later ones first, get nothing from that expert
    """

    def __init__(self, experts: int, group: Any = None, capacity: Optional[int] = None):
        self.exchange, self.experts, self.capacity = AllToAll(group), experts, capacity
        if experts % self.exchange.size != 0:
            raise ValueError(f"{experts} experts do not divide among the {self.exchange.size} processes of the group")
        if capacity is not None and (not isinstance(capacity, int) or capacity < 1):
            raise ValueError(f"capacity is {capacity!r} and must be a number of rows, such as "
                             "math.ceil(1.25 * tokens * k / experts), or None for all")
        self.here = experts // self.exchange.size

    def prepare(self, x: Tensor, index: Tensor) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
        """x [T, D] and the experts of each token [T, K] -> rows by expert, [N, D] or [E C, D]; how many for each
        [E]; the row of each (token, k) [N]; and the (token, k) of each row."""
        chosen, order = index.reshape(-1).sort(stable=True)
        of = torch.arange(self.experts, device=index.device)
        ends = torch.searchsorted(chosen, of, right=True)
        counts = ends - torch.searchsorted(chosen, of)
        slots = torch.empty_like(order)
        if self.capacity is None:
            slots[order], takes = torch.arange(len(order), device=order.device), order
        else:
            _, places, takes = padding(counts, len(order), self.capacity)
            slots[order] = places
            takes = torch.cat([order, order.new_full((1,), len(order))])[takes]
        rows = gather(x, takes.div(index.shape[1], rounding_mode="floor"), slots, self.capacity is not None)
        return rows, counts, slots, takes

    def dispatch(self, rows: Tensor, counts: Tensor) -> Tuple[Tensor, Optional[Tensor], Splits]:
        """The all-to-all to the experts -> rows by (process, local expert) [R, D]; how many of each [P, e], None
        with a capacity; and the splits of the exchange."""
        if self.capacity is not None:
            return self.exchange(rows), None, None
        received, splits = self.exchange.splits_of(counts.view(-1, self.here))
        return self.exchange(rows, splits), received, splits

    def regroup(self, rows: Tensor, received: Optional[Tensor]) -> Tuple[Tensor, Optional[Tensor], Any]:
        """Rows by local expert, from what dispatch returned; how many for each [e], None where all have the same;
        and what `ungroup` needs."""
        if received is None:
            groups = rows.view(self.exchange.size, self.here, -1, rows.shape[1])
            return groups.transpose(0, 1).reshape(rows.shape), None, None
        if self.exchange.size == 1:
            return rows, received[0], None
        local = torch.arange(self.here, device=rows.device).repeat(self.exchange.size)
        order = local.repeat_interleave(received.flatten(), output_size=len(rows)).sort(stable=True)[1]
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        return gather(rows, order, back), received.sum(0), (back, order)

    def ungroup(self, rows: Tensor, regrouped: Any) -> Tensor:
        """Rows by (process, local expert) again."""
        if regrouped is not None:
            return gather(rows, *regrouped)
        if self.capacity is None:
            return rows
        groups = rows.view(self.here, self.exchange.size, -1, rows.shape[1])
        return groups.transpose(0, 1).reshape(rows.shape)

    def combine(self, rows: Tensor, splits: Splits, weights: Tensor, slots: Tensor, takes: Tensor) -> Tensor:
        """The all-to-all back: rows [R, D] of the experts here -> the sum over k of weights [T, K] times what
        expert k made of each token [T, D], in the order of k."""
        back = self.exchange(rows, splits and splits[::-1])
        flat = gather(back, slots, takes, self.capacity is not None)
        return _added(flat.view(*weights.shape, -1) * weights.unsqueeze(2)).to(rows.dtype)
