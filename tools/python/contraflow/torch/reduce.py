"""The gradients of the stages at the end of a step: scaled, and summed over all that hold a copy."""

import torch

from . import sharded

BUCKET = 100 * 2**20  # bytes that are summed at once, and stand beside the gradients


class GradientSum:
    """Of one stage. `group` has all holders of the stage and their replicas, None where that is one process;
    the sum is divided by `divisor`. Of a sharded stage the average over its mesh is summed. `hook(stage,
    module)` then does what else has to be done over replicas."""

    def __init__(self, stage, group, divisor, hook=None):
        self._stage, self._group, self._divisor, self._hook = stage, group, divisor, hook
        self._weights, self._before, self._going = [], [], []

    def begin(self, weights):
        """Before a step: `weights` are those to sum with the stage. What they have in `.grad` is kept apart,
        for it is complete."""
        self._weights, self._before = weights, []
        if torch.is_grad_enabled():
            self._before = [(p, p.grad) for p in weights if p.grad is not None]
            for p, _ in self._before:
                p.grad = None

    def start(self):
        """After the last weight gradient of the stage. Returns gradients of other lanes that are not needed any
        more (order.mark_lane)."""
        foreign = []
        if self._stage.sharded:
            sharded.reduce(self._stage.module)
        weights = self._weights
        if self._group is None:
            grads = [sharded.local(p.grad) for p in weights if p.grad is not None]
            if self._divisor != 1 and grads:
                torch._foreach_div_(grads, float(self._divisor))
        else:
            for params in _buckets(weights):
                flat = torch.cat([sharded.local(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1)
                                  for p in params])
                for p, part in _parts(params, flat):
                    if sharded.local(p) is p and p.is_contiguous():
                        if hasattr(p.grad, "lane"):
                            foreign.append(p.grad)
                        p.grad = part  # what it was is given back before the next bucket
                self._going.append((self._group.allreduce([flat]), flat, params))
        if self._hook is not None:
            self._wait()
            self._hook(self._stage.number, self._stage.module)
        return foreign

    def finish(self):
        """Waits for the sum and adds it to what was in `.grad`."""
        self._wait()
        for p, before in self._before:
            if p.grad is not None:
                before.add_(p.grad)
            p.grad = before
        self._before = []

    def _wait(self):
        for work, flat, params in self._going:
            work.wait()
            if self._divisor != 1:
                flat.div_(float(self._divisor))
            for p, part in _parts(params, flat):
                if p.grad is None:
                    p.grad = torch.empty_like(p)
                grad = sharded.local(p.grad)
                if grad.data_ptr() != part.data_ptr():
                    grad.copy_(part)
        self._going = []


def _buckets(weights):
    """The weights in parts of one kind and at most BUCKET bytes, or one weight."""
    going, size = {}, {}
    for p in weights:
        kind, count = (p.dtype, p.device), sharded.local(p).numel() * p.element_size()
        if kind in going and size[kind] + count > BUCKET:
            yield going.pop(kind)
        if kind not in going:
            going[kind], size[kind] = [], 0
        going[kind].append(p)
        size[kind] += count
    yield from going.values()


def _parts(params, flat):
    """Each weight with its part of a bucket."""
    for p, part in zip(params, flat.split([sharded.local(p).numel() for p in params])):
        yield p, part.view(sharded.local(p).shape)
