"""The gradients of the stages at the end of a step: scaled, and summed over all that hold a copy."""

import torch

from . import sharded


class GradientSum:
    """Of one stage; `weights` are those to sum with it in this step. `group` has all holders of the stage
    and their replicas, None where that is one process; the sum is divided by `divisor`. Of a sharded stage
    the average over its mesh is summed. `hook(stage,
    module)` then does what else has to be done over replicas."""

    def __init__(self, stage, group, divisor, hook=None):
        self._stage, self._group, self._divisor, self._hook = stage, group, divisor, hook
        self.weights, self._going = [], []

    def start(self):
        """Behind the last weight gradient of the stage."""
        if self._stage.sharded:
            sharded.reduce(self._stage.module)
        weights = self.weights
        if self._group is None:
            grads = [sharded.local(p.grad) for p in weights if p.grad is not None]
            if self._divisor != 1 and grads:
                torch._foreach_div_(grads, float(self._divisor))
        else:
            by_kind = {}
            for p in weights:
                by_kind.setdefault((p.dtype, p.device), []).append(p)
            for params in by_kind.values():
                flat = torch.cat([sharded.local(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1)
                                  for p in params])
                self._going.append((self._group.allreduce([flat]), flat, params))
        if self._hook is not None:
            self.finish()
            self._hook(self._stage.number, self._stage.module)

    def finish(self):
        """Waits for the sum and puts it into `.grad`."""
        for work, flat, params in self._going:
            work.wait()
            if self._divisor != 1:
                flat.div_(float(self._divisor))
            for p, part in zip(params, flat.split([sharded.local(p).numel() for p in params])):
                if p.grad is None:
                    p.grad = torch.empty_like(p)
                grad = sharded.local(p.grad)
                grad.copy_(part.view_as(grad))
        self._going = []
