"""Input gradients and weight gradients of one stage, apart, through autograd.

B asks autograd for the gradients of the stage's inputs alone, and for those at every node where weights
join the way from the inputs to the outputs. W starts at these nodes. The first stage has no input gradient: there
the way begins at the node where its first weight meets a value. Nodes of PyTorch then compute what is
asked of them; a checkpointed forward runs once more. A weight that joins at several places gets its gradient
in B. A node of Python, such as a fused function or a compiled block, computes both gradients at once: its weights
get theirs in B. If all weights of a stage are such, B is a full backward.

Values that the graph saved for B alone are dropped after B. If autograd cannot start at a `GradientEdge`
(torch 1.13), W walks from the outputs again, which gives the same bits and costs the time of a B more.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any, Callable, Dict, Iterable, Iterator, List, Sequence, Set, Tuple

import torch
import torch.utils.checkpoint

try:
    from torch.autograd.graph import GradientEdge, get_gradient_edge
except ImportError:
    GradientEdge = None  # type: ignore[assignment, misc]


def _starts_at_edges() -> bool:
    if GradientEdge is None:
        return False
    x = torch.ones((), requires_grad=True)
    try:
        torch.autograd.backward([get_gradient_edge(x * 2)], [torch.ones(())], inputs=[x])
    except (TypeError, AttributeError, RuntimeError):
        return False
    return True


STARTS_AT_EDGES = _starts_at_edges()
# Checkpoints run their forward again once for all backwards in it.
_ExecGroup = getattr(torch.utils.checkpoint, "GraphExecGroup", contextlib.nullcontext)


def differentiable(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


# The engine that autograd's own functions call after checks of arguments that a schedule makes itself.
_engine: Callable[..., Any] = getattr(torch.autograd.graph, "_engine_run_backward",
                                      torch.autograd.Variable._execution_engine.run_backward)


def run_backward(roots: Sequence[Any], grads: Sequence[Any], inputs: Sequence[Any] = ()) -> None:
    """Adds to `.grad` of the inputs, or of all leaves."""
    _engine(tuple(roots), tuple(grads), False, False, tuple(inputs), allow_unreachable=True, accumulate_grad=True)


def _grads_of(inputs: Sequence[Any], roots: Sequence[Any], grads: Sequence[Any], keep_graph: bool) -> Sequence[Any]:
    """The gradients of the inputs, None where they are not used."""
    got: Sequence[Any] = _engine(tuple(roots), tuple(grads), keep_graph, False, tuple(inputs),
                                 allow_unreachable=True, accumulate_grad=False)
    return got


def root_of(output: torch.Tensor) -> Any:
    """The start of a backward: without the output itself, where autograd can, so that it is freed."""
    if output.is_leaf:  # an input handed through
        output = output.view_as(output)
    return get_gradient_edge(output) if STARTS_AT_EDGES else output


class WeightGradStore:
    """For kernels that compute their weight gradient themselves, with `weight_grad="store"`: where
    `enabled`, the backward of such a function puts a callable in the store and returns None for the
    weight; W calls it, under no_grad as a backward runs. It must add to `.grad`. Other weights get their
    gradients in B."""

    enabled = False
    _put: List[Callable[[], Any]] = []

    @classmethod
    def put(cls, work: Callable[[], Any]) -> None:
        """Leaves a callable without arguments for the W of the stage and micro-batch in its B."""
        if not cls.enabled:
            raise RuntimeError("WeightGradStore.put: no B is running: compute the gradient at once "
                               "where WeightGradStore.enabled is False")
        cls._put.append(work)

    @classmethod
    def collect(cls, backward: Callable[[], Any]) -> List[Callable[[], Any]]:
        """Runs `backward` and returns what it put."""
        cls.enabled = True
        try:
            backward()
            return cls._put
        finally:
            cls.enabled = False
            cls._put = []


def _computes_at_once(node: Any) -> bool:
    """Whether its backward computes all gradients, also where one is asked for: functions of Python, and
    those of C++ extensions."""
    return isinstance(node, torch._C._FunctionBase) or type(node).__name__ == "CppFunction"


def _joints(roots: Sequence[Tuple[Any, int]], inputs: Iterable[Any]) -> Tuple[
        List[Tuple[Any, List[int], List[torch.Tensor]]], List[torch.Tensor], List[Any]]:
    """The nodes at which weights join the way from the inputs to the roots: [(node, its outputs that
    have a gradient, leaves that join there)]; the leaves that join where all gradients are computed at once;
    and the nodes that lead from none of the former to its leaves."""
    edges: Dict[Any, Any] = {}
    parents: Dict[Any, List[Any]] = {}
    outputs: Dict[Any, Set[int]] = {}
    stack = []
    for node, output in roots:
        outputs.setdefault(node, set()).add(output)
        stack.append(node)
    while stack:
        node = stack.pop()
        if node in edges:
            continue
        edges[node] = node.next_functions
        for child, output in edges[node]:
            if child is not None:
                parents.setdefault(child, []).append(node)
                outputs.setdefault(child, set()).add(output)
                if child not in edges:
                    stack.append(child)
    on_way = set()
    # Without inputs the way begins where several values meet.
    stack = list(inputs) or [node for node, below in edges.items() if len(below) > 1]
    while stack:
        node = stack.pop()
        if node not in on_way:
            on_way.add(node)
            stack.extend(parents.get(node, ()))

    used: Set[Any] = set()

    def leaves_below(starts: List[Any], used: Set[Any]) -> List[torch.Tensor]:
        found, seen, stack = [], set(), starts
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if type(node).__name__ == "AccumulateGrad":
                found.append(node.variable)
            stack.extend(child for child, _ in edges[node])
        used.update(seen)
        return found

    joints, at_once = [], []
    for node, below in edges.items():
        if node in on_way:
            beside = [child for child, _ in below if child is not None and child not in on_way]
        else:  # an output that no input reaches
            beside = [node] if any(node is root for root, _ in roots) else []
        if beside and _computes_at_once(node):
            at_once += leaves_below(beside, set())
        elif beside:
            leaves = leaves_below(beside, used)
            if leaves:
                used.add(node)
                joints.append((node, sorted(outputs[node]), leaves))
    return joints, at_once, [node for node in edges if node not in used]


def _drop_saved(nodes: Iterable[Any]) -> None:
    """Frees what autograd saved for these nodes, which do not run again."""
    for node in nodes:
        kind = type(node)
        names = _saved_names.get(kind)
        if names is None:
            names = _saved_names[kind] = [name for name in dir(kind) if name.startswith("_raw_saved_")]
        for name in names:
            saved = getattr(node, name)
            for tensor in saved if isinstance(saved, (tuple, list)) else (saved,):
                try:
                    tensor.register_hooks(_nothing, _nothing)
                except (AttributeError, RuntimeError):
                    pass  # no tensor was saved there, or somebody else's hooks keep it elsewhere


_saved_names: Dict[type, List[str]] = {}


def _nothing(_: Any) -> None:
    return None


@contextlib.contextmanager
def _kept(nodes: Iterable[Any]) -> Iterator[None]:
    """For a backward after which the graph is used again, but not these nodes: compiled blocks refuse it where
    they write into what they saved."""
    blocks: List[Any] = [getattr(getattr(type(node), "_forward_cls", None), "metadata", None) for node in nodes]
    donated = [(block, block.bw_donated_idxs) for block in blocks if getattr(block, "bw_donated_idxs", None)]
    for block, _ in donated:
        block.bw_donated_idxs = []
    try:
        yield
    finally:
        for block, indices in donated:
            block.bw_donated_idxs = indices


def _add(leaf: torch.Tensor, grad: torch.Tensor) -> None:
    """Adds to `.grad` what autograd did not."""
    leaf.grad = grad.clone() if leaf.grad is None else leaf.grad.add_(grad)
    for hook in list((getattr(leaf, "_post_accumulate_grad_hooks", None) or {}).values()):
        hook(leaf)


def backward_input(roots: Sequence[Any], grads: Sequence[Any], inputs: Sequence[Any]) -> Tuple[Sequence[Any], Any]:
    """B: the gradients of `inputs` (None where one is not used), and what `backward_weight` needs; None where
    B was a full backward."""
    got: Sequence[Any]
    starts: List[Any] = [(root.node, root.output_nr) if STARTS_AT_EDGES else (root.grad_fn, root.output_nr)
                         for root in roots]
    joints, at_once, done = _joints(starts, [x.view_as(x).grad_fn.next_functions[0][0] for x in inputs])
    if at_once and not joints:
        run_backward(roots, grads)
        got = [x.grad for x in inputs]
        for x in inputs:
            x.grad = None
        return got, None
    if not STARTS_AT_EDGES:
        kept = [g.clone() for g in grads] if at_once else grads  # such a function may write into its own
        got = _grads_of(inputs, roots, grads, True) if inputs else ()
        return got, [(root, grad, grad._version) for root, grad in zip(roots, kept)]
    uses = Counter(id(leaf) for _, _, leaves in joints for leaf in leaves)
    now = {id(leaf): leaf for leaf in at_once}  # leaves that get their gradients in B
    later: List[Any] = []
    wanted = list(inputs)
    for node, outputs, leaves in joints:
        now.update((id(leaf), leaf) for leaf in leaves if uses[id(leaf)] > 1)
        own = [leaf for leaf in leaves if id(leaf) not in now]
        if own:
            starts = [GradientEdge(node, output) for output in outputs]
            later.append((starts, slice(len(wanted), len(wanted) + len(starts)), own))
            wanted.extend(starts)
    versions: Dict[Tuple[Any, int], int] = {}  # of the gradients that W needs, before a function could write into them
    for (start, *_), _, _ in later if any(map(_computes_at_once, done)) else ():
        start.node.register_prehook(lambda grads, node=start.node: versions.update(
            {(node, at): grad._version for at, grad in enumerate(grads) if grad is not None}))
    with _kept(done if later else ()):
        got = _grads_of([*wanted, *now.values()], roots, grads, bool(later))
    for leaf, grad in zip(now.values(), got[len(wanted):]):
        if grad is not None:
            _add(leaf, grad)
    if later:
        _drop_saved(done)
    late = [([(start, grad, versions.get((start.node, start.output_nr), grad._version))
              for start, grad in zip(starts, got[at]) if grad is not None], own) for starts, at, own in later]
    return got[:len(inputs)], late


def _unchanged(known: Sequence[Tuple[Any, Any, int]]) -> Tuple[List[Any], List[Any]]:
    """Roots and gradients of a backward, from [(root, gradient, its version when it was made)]."""
    if any(grad._version != version for _, grad, version in known):
        raise RuntimeError("an autograd function of this stage, or of the one before it on this rank, wrote into "
                           "the gradient that it got, which W needs: let its backward return a new tensor, or "
                           "take a plan with full backwards such as 1f1b")
    return [root for root, _, _ in known], [grad for _, grad, _ in known]


def backward_weight(left: Any, weights: Sequence[torch.Tensor]) -> None:
    """W: adds the gradients of the weights to their `.grad`, from what `backward_input` left."""
    if not STARTS_AT_EDGES:
        if left and weights:
            run_backward(*_unchanged(left), weights)
        return
    with _ExecGroup():
        for known, own in left:
            if known:
                starts, grads = _unchanged(known)
                try:
                    run_backward(starts, grads, own)
                except RuntimeError as error:
                    if "backward an extra time" not in str(error):
                        raise
                    raise RuntimeError("a selective checkpoint allows one backward, and the plan has B and W: "
                                       "checkpoint without context_fn, let the plan recompute, or take a plan "
                                       "with full backwards such as 1f1b") from error
