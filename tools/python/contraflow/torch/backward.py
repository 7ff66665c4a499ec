"""Input gradients and weight gradients of one stage, apart, through autograd.

B asks autograd for the gradients of the stage's inputs alone, and for those at every node where weights
join the way from the inputs to the outputs. W starts at these nodes, so nothing is computed twice. A
weight that joins at several places gets its gradient in B, and W adds it. What the graph saved for B alone
is dropped behind B. Where autograd
cannot start at a `GradientEdge` (torch 1.13), W walks from the outputs again, which gives the same bits
and costs the time of a B more.
"""

from collections import Counter

import torch

try:
    from torch.autograd.graph import GradientEdge, get_gradient_edge
except ImportError:
    GradientEdge = None


def _starts_at_edges():
    if GradientEdge is None:
        return False
    x = torch.ones((), requires_grad=True)
    try:
        torch.autograd.backward([get_gradient_edge(x * 2)], [torch.ones(())], inputs=[x])
    except (TypeError, AttributeError, RuntimeError):
        return False
    return True


STARTS_AT_EDGES = _starts_at_edges()


def differentiable(tensor):
    return tensor.is_floating_point() or tensor.is_complex()


def root_of(output):
    """Where a backward starts: without the output itself, where autograd can, so that it is freed."""
    if output.grad_fn is None:  # an input handed through
        output = output.view_as(output)
    return get_gradient_edge(output) if STARTS_AT_EDGES else output


class WeightGradStore:
    """For kernels that compute their weight gradient themselves, with `weight_grad="store"`: where
    `enabled`, the backward of such a function puts a callable in the store and returns None for the
    weight; W calls it. It must add to `.grad`. Other weights get their gradients in B."""

    enabled = False
    _put = []

    @classmethod
    def put(cls, work):
        """Leaves a callable without arguments for the W of the stage and micro-batch in its B."""
        if not cls.enabled:
            raise RuntimeError("WeightGradStore.put: no B is running: compute the gradient at once "
                               "where WeightGradStore.enabled is False")
        cls._put.append(work)

    @classmethod
    def collect(cls, backward):
        """Runs `backward` and returns what it put."""
        cls.enabled = True
        try:
            backward()
            return cls._put
        finally:
            cls.enabled = False
            cls._put = []


def _joints(roots, inputs):
    """The nodes at which weights join the way from the inputs to the roots: [(node, its outputs that
    have a gradient, leaves that join there)]; and the nodes that lead from none of them to its leaves."""
    edges, parents, outputs = {}, {}, {}
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
    stack = list(inputs)
    while stack:
        node = stack.pop()
        if node not in on_way:
            on_way.add(node)
            stack.extend(parents.get(node, ()))

    used = set()

    def leaves_below(starts):
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

    joints = []
    for node, below in edges.items():
        if node in on_way:
            beside = [child for child, _ in below if child is not None and child not in on_way]
        else:  # an output that no input reaches
            beside = [node] if any(node is root for root, _ in roots) else []
        if beside:
            leaves = leaves_below(beside)
            if leaves:
                used.add(node)
                joints.append((node, sorted(outputs[node]), leaves))
    return joints, [node for node in edges if node not in used]


def _drop_saved(nodes):
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


_saved_names = {}


def _nothing(_):
    return None


def backward_input(roots, grads, inputs):
    """B: the gradients of `inputs` (None where one is not used), and what `backward_weight` needs."""
    if not STARTS_AT_EDGES:
        got = torch.autograd.grad(roots, inputs, grads, retain_graph=True, allow_unused=True)
        return got, (roots, grads)
    joints, done = _joints([(root.node, root.output_nr) for root in roots],
                           [get_gradient_edge(x).node for x in inputs])
    uses = Counter(id(leaf) for _, _, leaves in joints for leaf in leaves)
    later, early, wanted = [], {}, list(inputs)
    for node, outputs, leaves in joints:
        own = []
        for leaf in leaves:
            if uses[id(leaf)] == 1:
                own.append(leaf)
            else:
                early[id(leaf)] = leaf
        if own:
            starts = [GradientEdge(node, output) for output in outputs]
            later.append((starts, slice(len(wanted), len(wanted) + len(starts)), own))
            wanted.extend(starts)
    early = list(early.values())
    got = torch.autograd.grad(roots, wanted + early, grads, retain_graph=bool(later),
                              allow_unused=True)
    if later:
        _drop_saved(done)
    late = [(starts, got[at], own) for starts, at, own in later]
    return got[:len(inputs)], (late, list(zip(early, got[len(wanted):])))


def backward_weight(left, weights):
    """W: adds the gradients of the weights to their `.grad`, from what `backward_input` left."""
    if not STARTS_AT_EDGES:
        roots, grads = left
        if roots and weights:
            torch.autograd.backward(roots, grads, inputs=weights)
        return
    late, early = left
    for starts, grads, own in late:
        if any(grad is None for grad in grads):
            known = [(start, grad) for start, grad in zip(starts, grads) if grad is not None]
            if not known:
                continue
            starts, grads = zip(*known)
        torch.autograd.backward(starts, grads, inputs=own)
    for leaf, grad in early:
        if grad is not None:
            leaf.grad = grad.clone() if leaf.grad is None else leaf.grad.add_(grad)
