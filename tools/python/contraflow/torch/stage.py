"""F, B, W, BW, FB and R of one stage of the model and one micro-batch."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, Dict, Iterator, Optional, Sequence, Tuple

import torch

from . import sharded
from .backward import WeightGradStore, backward_input, backward_weight, differentiable, root_of, run_backward


class Cell:
    """One stage and one micro-batch on this rank: what one instruction leaves for another. `x` is the
    stage's input, `dy` the gradients of its outputs, `out` and `dx` what a SEND takes; a neighbour on
    the same rank (`next`, `back`) gets it at once."""

    def __init__(self, stage: int, microbatch: int, again: bool) -> None:
        self.stage, self.microbatch, self.again = stage, microbatch, again
        self.next: Optional[Cell] = None
        self.back: Optional[Cell] = None
        self.forget()

    def forget(self) -> None:
        """Drops all that a step left."""
        self.kwargs: Dict[str, Any] = {}
        self.target: Tuple[Any, ...] = ()
        none: Any = None
        self.x = self.y_form = self.roots = self.used = self.dy = self.out = self.dx = none
        self.left = self.rng = self.loss = self.output = none


class ForwardChunk:
    """The forward of an FB, for `Overlap`: `module(*inputs, **kwargs)`, and after it
    `loss_fn(output, *target)` at the last stage (else `loss_fn` is None). `run()` does both."""

    def __init__(self, stage: Stage, cell: Cell) -> None:
        self.stage, self.microbatch, self.module = stage.number, cell.microbatch, stage.module
        self.inputs, self.kwargs, self.target = cell.x, cell.kwargs, cell.target
        self.loss_fn = stage.loss_fn if stage.last else None
        self._stage, self._cell = stage, cell

    def run(self) -> Any:
        return self._stage.apply(self._cell)


class BackwardChunk:
    """The full backward of an FB, for `Overlap`: what `torch.autograd.backward(roots, grads)` does to
    the gradients of the weights and of `inputs`. `run()` does that."""

    def __init__(self, stage: Stage, cell: Cell) -> None:
        self.stage, self.microbatch, self.module = stage.number, cell.microbatch, stage.module
        self.inputs, self.roots, self.grads = cell.x, cell.roots, stage.start_grads(cell)

    def run(self) -> None:
        if self.roots:
            run_backward(self.roots, self.grads)


class Overlap:
    """How an FB runs its two chunks; override it to run them at the same time."""

    def forward_backward(self, forward: ForwardChunk, backward: BackwardChunk) -> Any:
        """Does what `forward.run()` (ForwardChunk) and `backward.run()` (BackwardChunk) do, and
        returns what `forward.run()` returns."""
        result = forward.run()
        backward.run()
        return result


class Stage:
    """A module as a stage. `split` is "autograd" or "store" (WeightGradStore)."""

    def __init__(self, number: int, module: torch.nn.Module, last: bool, loss_fn: Any, split: str = "autograd",
                 keep_rng: bool = True) -> None:
        self.number, self.module, self.loss_fn = number, module, loss_fn
        self.first, self.last = number == 0, last
        self.split, self.keep_rng = split, keep_rng
        self.one: Optional[torch.Tensor] = None
        self.told = False
        self.sharded = sharded.is_sharded(module)
        self.device = next((t.device for t in (*module.parameters(), *module.buffers())), None)
        self.begin(False)

    def begin(self, keep_output: bool) -> None:
        """Before each step: what is trained may have changed."""
        self.keep_output = keep_output
        if self.sharded:
            sharded.begin(self.module)
        self.weights = [p for p in self.module.parameters() if p.requires_grad]

    def end(self) -> None:
        """After each step."""
        if self.sharded:
            sharded.reshard(self.module)

    # F and R

    def forward(self, cell: Cell) -> None:
        self._open(cell)
        if cell.again:
            if self.keep_rng:
                cell.rng = rng_state(self.device)
            with torch.no_grad(), without_cast_cache():
                self._close(cell, self.apply(cell))
        else:
            self._close(cell, self.apply(cell))

    def forward_only(self, cell: Cell) -> None:
        """F where no backward follows; without a target there is no loss."""
        if self.last and not cell.target:
            output = self.module(*cell.x, **cell.kwargs)
            cell.output = output if self.keep_output else None
        else:
            self._close(cell, self.apply(cell))
        cell.x = None

    def forward_again(self, cell: Cell) -> None:
        """R: from the input that F kept, with the random numbers that F had."""
        random, cell.rng = cell.rng, None
        with restored_rng(random):
            result = self.apply(cell)
        self._keep_roots(cell, self._outputs(result))

    def apply(self, cell: Cell) -> Any:
        """The module, and after the last stage the loss."""
        output = self.module(*cell.x, **cell.kwargs)
        if not self.last:
            return output
        if self.keep_output:
            cell.output = output.detach() if torch.is_tensor(output) else output
        return self.loss_fn(output, *cell.target)

    def _open(self, cell: Cell) -> None:
        if not self.first:
            for x in cell.x:
                if differentiable(x):
                    x.requires_grad_()

    def _close(self, cell: Cell, result: Any) -> None:
        outputs = self._outputs(result)
        if self.last:
            cell.loss = result.detach()
        else:
            self._hand_on(cell, tuple([y.detach() for y in outputs]))
        if not cell.again:
            self._keep_roots(cell, outputs)

    def _outputs(self, result: Any) -> Tuple[torch.Tensor, ...]:
        if torch.is_tensor(result) and (not self.last or result.numel() == 1):
            return (result,)
        if self.last:
            got = f"a tensor of shape {list(result.shape)}" if torch.is_tensor(result) else f"{result!r:.80}"
            raise TypeError(f"loss_fn must return a scalar tensor, returned {got}")
        if isinstance(result, (tuple, list)) and all(torch.is_tensor(y) for y in result):
            return tuple(result)
        raise TypeError(f"stage {self.number} must return a tensor or a tuple of tensors, returned a "
                        f"{type(result).__name__}: {result!r:.80}")

    def _keep_roots(self, cell: Cell, outputs: Sequence[torch.Tensor]) -> None:
        if self.last:
            self.check_loss(outputs[0])
        if len(outputs) == 1 and outputs[0].requires_grad:
            cell.roots, cell.used = [root_of(outputs[0])], None
        else:
            outputs = [y for y in outputs if differentiable(y)]
            cell.used = [y.requires_grad for y in outputs]
            cell.roots = [root_of(y) for y in outputs if y.requires_grad]

    def check_loss(self, loss: torch.Tensor) -> None:
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise RuntimeError("the loss does not require a gradient: it depends on no parameter and on no "
                               "input of the last stage, or was detached from them")

    # B, W and BW

    def start_grad(self, loss: torch.Tensor) -> torch.Tensor:
        """The gradient of the loss, unless a function wrote into it."""
        if self.one is None or self.one.dtype != loss.dtype or self.one._version:
            self.one = torch.ones_like(loss)
        return self.one

    def start_grads(self, cell: Cell) -> Any:
        if self.last:
            return [self.start_grad(cell.loss)] * len(cell.roots)
        if cell.used is None:
            return cell.dy
        return [dy for dy, used in zip(cell.dy, cell.used) if used]

    def backward(self, cell: Cell) -> None:
        """BW."""
        if cell.roots:
            run_backward(cell.roots, self.start_grads(cell))
        self.close_backward(cell)

    def close_backward(self, cell: Cell) -> None:
        """After a full backward: hands the gradients of the inputs on and drops the activation."""
        if not self.first:
            dx = []
            for x in cell.x:
                if differentiable(x):
                    dx.append(torch.zeros_like(x) if x.grad is None else x.grad)
                    x.grad = None
            self._hand_back(cell, dx)
        cell.x = cell.roots = cell.dy = None

    def backward_input(self, cell: Cell) -> None:
        """B. The first stage has no input gradient: there it goes as far as the first weights."""
        dx: Sequence[Any]
        left: Any
        inputs = [] if self.first else [x for x in cell.x if differentiable(x)]
        if not cell.roots:
            dx, left = [None] * len(inputs), None
        elif self.split == "store":
            left = WeightGradStore.collect(lambda: run_backward(cell.roots, self.start_grads(cell)))
            dx = [x.grad for x in inputs]
            for x in inputs:
                x.grad = None
        else:
            dx, left = backward_input(cell.roots, self.start_grads(cell), inputs)
            if left is None and not self.told:
                self.told = True
                warnings.warn(f"stage {self.number}: all weights are in compiled blocks or in autograd functions "
                              "of Python or C++, which compute all gradients at once: B is a full backward and W "
                              "does nothing. Plan with costs whose b has the time of both and whose w is 0, or "
                              "take functions that leave their weight gradient to weight_grad=\"store\"",
                              stacklevel=2)
        if not self.first:
            self._hand_back(cell, [torch.zeros_like(x) if grad is None else grad
                                   for x, grad in zip(inputs, dx)])
        cell.x = cell.roots = cell.dy = None
        cell.left = left

    def backward_weight(self, cell: Cell) -> None:
        """W."""
        left, cell.left = cell.left, None
        if left is None:
            return
        if self.split == "store":
            with torch.no_grad():  # as inside a backward
                for work in left:
                    work()
        else:
            backward_weight(left, self.weights)

    def _hand_on(self, cell: Cell, y: Sequence[Any]) -> None:
        cell.y_form = [(t.shape, t.dtype) for t in y if differentiable(t)]
        if cell.next is None:
            cell.out = y
        else:
            cell.next.x = y

    def _hand_back(self, cell: Cell, dx: Sequence[torch.Tensor]) -> None:
        if cell.back is None:
            cell.dx = dx
        else:
            cell.back.dy = dx

    # FB

    def forward_backward(self, cell: Cell, other: Stage, other_cell: Cell, overlap: Optional[Overlap]) -> None:
        """F of this stage with BW of another one."""
        if overlap is None or cell.again:
            self.forward(cell)
            other.backward(other_cell)
            return
        self._open(cell)
        result = overlap.forward_backward(ForwardChunk(self, cell), BackwardChunk(other, other_cell))
        self._close(cell, result)
        other.close_backward(other_cell)


@contextlib.contextmanager
def without_cast_cache() -> Iterator[None]:
    """For forwards without gradients inside autocast: torch 1.13 would keep their casts of the weights,
    which have no gradient, for the forwards that need one."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def rng_state(device: Optional[torch.device]) -> Tuple[torch.Tensor, Optional[torch.device], Any]:
    """The state of the random numbers of the host, and of a GPU where that is the device."""
    if device is None or device.type != "cuda":
        return torch.get_rng_state(), None, None
    return torch.get_rng_state(), device, torch.cuda.get_rng_state(device)


@contextlib.contextmanager
def restored_rng(state: Any) -> Iterator[None]:
    """Runs with a state that `rng_state` gave, or as it is (None)."""
    if state is None:
        yield
        return
    host, device, of_device = state
    with torch.random.fork_rng([] if device is None else [device]):
        torch.set_rng_state(host)
        if device is not None:
            torch.cuda.set_rng_state(of_device, device)
        yield
