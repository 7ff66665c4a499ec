"""F, B, W and R of the components of a stage that was given as layers."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Dict, FrozenSet, Hashable, List, Optional, Sequence, Tuple

import torch

from .backward import differentiable
from .island import Grads, Island, Values, forms_of, leaves_of, spread
from .layers import PARTS, Layers, extra_layers, part_of
from .order import COMPUTE_LANE, EXCHANGE_LANE, mark_lane
from .stage import Cell, Stage, restored_rng, rng_state

_WEIGHTS_IN = {"ATTN": ("DISPATCH", "ATTN"), "MLP": ("COMBINE", "MLP")}


class LayerCell:
    """One layer and one micro-batch. `again` are the parts that run once more before their backward.

    Each method runs a part and returns what it read, which must live until other lanes have gone past it.
    """

    def __init__(self, stage: LayeredStage, cell: Cell, number: int, again: FrozenSet[str]):
        self._stage, self._cell, self._number, self.again = stage, cell, number, again
        self._parts = list(PARTS[stage.kinds[number]])
        self.last_part = self._parts[-1]
        self.before: Optional[LayerCell] = None  # the layers beside it in the stage
        self.after: Optional[LayerCell] = None
        self.forget()

    def forget(self) -> None:
        """Drops all that a step left."""
        self.given: Dict[str, Values] = {}  # inputs of a part, from the part before it
        self.grads: Dict[str, Grads] = {}   # of the outputs of a part
        self.islands: Dict[str, Island] = {}
        self._kept: Values = ()             # values of attention for combine
        self._kept_count = 0
        self._kept_grads: Grads = []
        self._tokens = 0                    # how many values of attention go to dispatch
        self._random: Dict[str, Any] = {}   # the random numbers that R begins with

    def forward(self, name: str) -> Values:
        """F."""
        read = self._take(name)
        island = self.islands[name] = Island(*self._function(name))
        if name not in self.again:
            self._deliver(name, self._run(name, read), read, False)
            return read
        if self._stage.keep_rng:
            self._random[name] = rng_state(self._stage.device)
        with torch.no_grad():
            self._deliver(name, self._run(name, read), read, False)
        island.inputs = ()
        chain = len(read) - (self._kept_count if name == "COMBINE" else 0)
        if not self._made_again(name):
            self.given[name] = read[:chain]
        if "ATTN" not in self.again and name == "COMBINE":
            self._kept = read[chain:]
        return read

    def _run(self, name: str, read: Values) -> Values:
        """F or R of a part. An error says what it read, which the part before it may have returned wrong."""
        try:
            out = self.islands[name].forward(read)
        except (RuntimeError, TypeError) as error:
            at = self._parts.index(name)
            of = self._named(self._parts[at - 1]) if at > 0 else "what is before it"
            error.args = (f"{error}; {self._named(name)} got {forms_of(read)} of {of}",)
            raise
        if not any(map(torch.is_tensor, out)):
            raise TypeError(f"{self._named(name)} must return a tensor, or a tuple of tensors and anything else, "
                            f"returned {forms_of(out)}")
        return out

    def _named(self, name: str) -> str:
        kind = self._stage.kinds[self._number]
        part = "the module" if kind == "p" else PARTS[kind][name]
        return f"{part} of layer {self._number} of stage {self._cell.stage}"

    def forward_again(self, name: str) -> Values:
        """R."""
        read = self._take(name)
        with restored_rng(self._random.pop(name, None)):
            self._deliver(name, self._run(name, read), read, True)
        return read

    def forward_alone(self, name: str) -> Values:
        """F where no backward follows."""
        read = self._take(name)
        function, explicit = self._function(name)
        out = function(*read)
        self._deliver(name, leaves_of(out if explicit is None else out[0]), read, False)
        return read

    def backward(self, name: str) -> Grads:
        """B."""
        island = self.islands[name]
        grads = self.grads.pop(name) if self._following(name) else self._stage.start_parts(self._cell, self)
        dx = island.backward(grads)
        mark_lane(dx, (*grads, *island.inputs), _lane(name))
        if name == "COMBINE":
            chain = len(dx) - self._kept_count
            dx, self._kept_grads = dx[:chain], dx[chain:]
        elif name == "DISPATCH":
            dx = [*dx, *self._kept_grads]
        preceding = self._preceding(name)
        if preceding is not None:
            preceding[0].grads[preceding[1]] = dx
        else:
            self._stage.hand_back(self._cell, island.inputs, dx)
        return grads

    def weight(self, name: str) -> Values:
        """W of a part, and of the exchange before or after it."""
        end = ("END",) if name == "MLP" or len(self._parts) == 1 else ()
        read: List[Any] = []
        for part in (*end, *_WEIGHTS_IN[name]):
            island = self.islands.pop(part, None)
            if island is not None:
                read += (*island.inputs, *island.grads)
                weights, lane = self._stage.weights, _lane(part)
                first = [p for p in weights if p.grad is None] if lane != COMPUTE_LANE else ()
                island.weight(weights)
                mark_lane([p.grad for p in first if p.grad is not None], (), lane)
        return tuple(read)

    def _take(self, name: str) -> Values:
        if name == "ATTN" and self.before is None and name not in self.given:
            return self._stage.open_parts(self._cell)
        kept: Values = ()
        if name == "COMBINE":
            kept, self._kept = self._kept, ()
        return (*self.given.pop(name), *kept)

    def _made_again(self, name: str) -> bool:
        """Whether R of the part before makes what this one reads."""
        preceding = self._preceding(name)
        return preceding is not None and preceding[1] in preceding[0].again

    def _preceding(self, name: str) -> Optional[Tuple[LayerCell, str]]:
        if name != "ATTN":
            return self, self._parts[self._parts.index(name) - 1]
        return (self.before, self.before.last_part) if self.before is not None else None

    def _following(self, name: str) -> Optional[Tuple[LayerCell, str]]:
        if name != self.last_part:
            return self, self._parts[self._parts.index(name) + 1]
        return (self.after, "ATTN") if self.after is not None else None

    def _deliver(self, name: str, out: Values, read: Values, again: bool) -> None:
        """Hands the outputs of a part on; those of R to parts that run again."""
        mark_lane(out, read, _lane(name))
        if name == "ATTN" and "COMBINE" in self._parts:
            out, kept = out[:self._tokens], out[self._tokens:]
            self._kept_count = len(kept)
            if not again or "COMBINE" in self.again:
                self._kept = kept
        following = self._following(name)
        if following is None:
            self._stage.close_parts(self._cell, self, out, again)
        elif not again or following[1] in following[0].again:
            following[0].given[following[1]] = out

    def _function(self, name: str) -> Tuple[Callable[..., Any], Optional[Callable[..., Any]]]:
        kind, layer = self._stage.kinds[self._number], self._stage.layers[self._number]
        part, explicit = part_of(layer, kind, name, self._cell.kwargs)
        if name != "ATTN":
            return part, explicit
        before = self._stage.modules_before if self._number == 0 else []

        def attention(*values: Any) -> Any:
            for module in before:
                values = spread(module(*values))
            result = spread(part(*values))
            if kind != "m":
                return result
            tokens = spread(result[0])
            self._tokens = len(tokens)
            return (*tokens, *result[1:])

        return attention, None


def _to_send(tensors: Sequence[Any], lane: Hashable) -> Values:
    """Tensors that a SEND takes as they are, so that it reads nothing of this lane after its message has left."""
    made = tuple([y.contiguous() if torch.is_tensor(y) else y for y in tensors])
    mark_lane(made, tensors, lane)
    return made


def _lane(name: str) -> str:
    return EXCHANGE_LANE if name in ("DISPATCH", "COMBINE") else COMPUTE_LANE


class LayeredStage(Stage):
    """A stage of a component plan. `kinds` has a letter for each of its layers in the plan; plain modules
    before the first layer of the model and after its last one are computed with that layer."""

    def __init__(self, number: int, layers: Layers, kinds: str, last: bool, loss_fn: Any, keep_rng: bool):
        super().__init__(number, layers, last, loss_fn, keep_rng=keep_rng)
        self.kinds = kinds
        # Enters compute, for what belongs to it in an operation of another lane.
        self.computing: Callable[[], ContextManager[None]] = contextlib.nullcontext
        begin, end = extra_layers(layers, kinds, self.first, last)
        modules = list(layers)
        self.modules_before, self.layers = modules[:begin], modules[begin:len(modules) - end]
        self._modules_after = modules[len(modules) - end:]

    def cells(self, cell: Cell, again: List[FrozenSet[str]]) -> List[LayerCell]:
        """A cell for each layer; `again` by layer."""
        made = [LayerCell(self, cell, number, parts) for number, parts in enumerate(again)]
        for one, other in zip(made, made[1:]):
            one.after, other.before = other, one
        return made

    def open_parts(self, cell: Cell) -> Values:
        """Returns the values that the first layer reads."""
        self._open(cell)
        x: Values = cell.x
        cell.x = None
        return x

    def close_parts(self, cell: Cell, of_layer: LayerCell, out: Values, again: bool) -> None:
        """After the last layer: hands its outputs to the next stage. The loss is computed where the backward
        begins, or at once where none follows."""
        if self.last and not of_layer.islands:
            with self.computing():
                self._end(cell, out)
        elif self.last:
            if again or of_layer.last_part not in of_layer.again:
                of_layer.given["END"] = out
        elif not again:
            self._outputs(out)
            cell.used = [differentiable(y) for y in out]
            self._hand_on(cell, _to_send(out, _lane(of_layer.last_part)) if cell.next is None else out)

    def _loss_of(self, cell: Cell) -> Callable[..., Any]:
        def end(*values: Any) -> Any:
            result: Any = values[0] if len(values) == 1 else values
            for module in self._modules_after:
                result = module(*spread(result))
            if self.keep_output:
                cell.output = result.detach() if torch.is_tensor(result) else result
            trains = torch.is_grad_enabled()
            return self._outputs(self.loss_fn(result, *cell.target)) if cell.target or trains else ()
        return end

    def _end(self, cell: Cell, out: Values) -> Island:
        island = Island(self._loss_of(cell))
        got = island.forward(out)
        if got:
            self.check_loss(got[0])
            cell.loss = got[0].detach()
        return island

    def start_parts(self, cell: Cell, of_layer: LayerCell) -> Grads:
        """Gradients of the outputs of the last layer."""
        if self.last:
            out = of_layer.given.pop("END")
            with self.computing():
                island = of_layer.islands["END"] = self._end(cell, out)
                dx = island.backward([self.start_grad(cell.loss)])
            mark_lane(dx, out, COMPUTE_LANE)
            return dx
        dy: Any = cell.dy
        used: Any = cell.used
        cell.dy, grads = None, iter(dy)
        return [next(grads) if of else None for of in used]

    def hand_back(self, cell: Cell, x: Values, dx: Grads) -> None:
        """Gradients of the inputs of the stage, to the stage before."""
        if not self.first:
            self._hand_back(cell, _to_send([torch.zeros_like(of) if grad is None else grad
                                            for of, grad in zip(x, dx) if differentiable(of)], COMPUTE_LANE))
