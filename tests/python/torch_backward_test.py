"""F, B, W, BW and R of one stage: the same bits as a full backward, nothing early, nothing kept."""

import gc
import unittest
import warnings
import weakref

from torch_model import Block, loss_fn, torch

from contraflow.torch import Overlap, WeightGradStore
from contraflow.torch.backward import STARTS_AT_EDGES
from contraflow.torch.stage import Cell, Stage

nn, checkpoint = torch.nn, torch.utils.checkpoint.checkpoint
ROWS, WIDTH = 6, 8


class Beside(nn.Module):
    """Weights that meet the input late, and one that never does."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(WIDTH))

    def forward(self, x):
        return x * (self.a + self.b), torch.arange(3), self.b * 2


class Stopped(torch.autograd.Function):
    """Has no gradient for its input."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        return None


class Stops(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(WIDTH))

    def forward(self, x):
        return x * self.a + Stopped.apply(x * self.b)


class OwnWeightGrad(torch.autograd.Function):
    """A product whose weight gradient goes to the store."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors

        def work():
            dw = x.T @ dy
            weight.grad = dw if weight.grad is None else weight.grad + dw
        if not WeightGradStore.enabled:
            work()
        else:
            WeightGradStore.put(work)
        return dy @ weight.T, None


class OwnKernel(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.Parameter(torch.randn(WIDTH))

    def forward(self, x):
        return OwnWeightGrad.apply(x, self.weight) + self.bias


class Fused(torch.autograd.Function):
    """A product with a bias that computes all gradients at once, and writes into the one it gets."""

    calls = 0

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, dy):
        Fused.calls += 1
        x, scale = ctx.saved_tensors
        dscale = (dy * x).sum(0)
        return dy.mul_(scale), dscale


class OwnScale(nn.Module):
    """`times` fused functions, the last of them at the output; a Linear before them unless `alone`."""

    def __init__(self, times=1, alone=True):
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.rand(WIDTH) + 0.5) for _ in range(times)])
        self.before = nn.Identity() if alone else nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = self.before(x)
        for scale in self.scales:
            x = Fused.apply(x, scale * 1)
        return x


class ThenBias(OwnScale):
    """The fused function writes into an array that the bias after it needs."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        return super().forward(x) + self.bias


class Twice(OwnScale):
    """A weight of a fused function and of a product."""

    def __init__(self):
        super().__init__(alone=False)

    def forward(self, x):
        return super().forward(x * self.scales[0])


class ScaleBeside(OwnScale):
    """In addition to a fused function a weight that no input reaches."""

    def __init__(self):
        super().__init__(alone=False)
        self.beside = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x):
        return super().forward(x), self.beside * 2


class Checkpointed(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)])
        self.options, self.forwards = options, 0

    def body(self, x):
        self.forwards += 1
        return self.layers(x)

    def forward(self, x):
        return checkpoint(self.body, x, use_reentrant=False, **self.options)


class Compiled(nn.Module):
    """Blocks compiled apart, with eager layers around them unless `alone`, that ran in a plain step."""

    def __init__(self, alone):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.before = nn.Identity() if alone else nn.Linear(WIDTH, WIDTH)
        self.act = torch.compile(lambda x: torch.tanh(x) * torch.sin(x), backend="aot_eager", dynamic=False)
        self.run = torch.compile(self.block.forward, backend="aot_eager", dynamic=False)
        self(torch.ones(ROWS, WIDTH, requires_grad=True)).sum().backward()

    def forward(self, x):
        return self.run(self.act(self.before(x)))


def modules():
    torch.manual_seed(3)
    return [Block(0), Beside(), Stops(), nn.Identity(), nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(),
                                                             nn.Linear(16, WIDTH)),
            nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0), nn.GRU(WIDTH, WIDTH), Checkpointed()]


def at_once():
    """Whose B computes weight gradients as well."""
    torch.manual_seed(3)
    found = [OwnScale(), OwnScale(3), OwnScale(2, alone=False), Twice(), ScaleBeside()]
    if hasattr(torch, "compile") and STARTS_AT_EDGES:
        found += [Compiled(True), Compiled(False)]
    return found


def stage_and_cell(module, again=False, number=1, last=False, split="autograd"):
    return Stage(number, module, last, loss_fn, split), Cell(number, 0, again)



def out_shapes(module, x):
    y = module(x)
    y = y if isinstance(y, tuple) else (y,)
    return [(t.numel(), t.shape) for t in y if t.is_floating_point()]


def gradients(module):
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def same(a, b):
    return all(x is y is None or torch.equal(x, y) for x, y in zip(a, b))


# How many weights are used several times.
TWICE = {"Block": 1, "Beside": 1, "TransformerEncoderLayer": 2, "GRU": 2}


class BackwardTest(unittest.TestCase):
    def run_cells(self, module, order, split="autograd"):
        """Three micro-batches through `order`; input gradients, and weight gradients after each."""
        module.zero_grad(set_to_none=True)
        found, weights = [], []
        for m in range(3):
            x = torch.sin(torch.arange(float(ROWS * WIDTH)) + m).view(ROWS, WIDTH)
            stage, cell = stage_and_cell(module, "R" in order, split=split)
            cell.x = (x.clone(),)
            for op in order:
                if op in ("B", "BW"):
                    cell.dy = [torch.cos(torch.arange(float(n))).view(shape)
                               for n, shape in out_shapes(module, x)]
                {"F": stage.forward, "R": stage.forward_again, "B": stage.backward_input,
                 "W": stage.backward_weight, "BW": stage.backward}[op](cell)
                weights.append(gradients(module))
            found += cell.dx
        return found, weights

    def test_split_has_the_bits_of_the_full_backward(self):
        for module in modules():
            with self.subTest(type(module).__name__):
                whole, whole_weights = self.run_cells(module, ["F", "BW"])
                split, weights = self.run_cells(module, ["F", "B", "W"])
                again, again_weights = self.run_cells(module, ["F", "R", "B", "W"])
                self.assertTrue(same(whole, split))
                self.assertTrue(same(whole_weights[-1], weights[-1]))
                self.assertTrue(same(whole, again))
                self.assertTrue(same(whole_weights[-1], again_weights[-1]))
                # B left the weights as the W before it did, but for those that are used several times.
                changed = [not same([a], [b]) for a, b in zip(weights[2], weights[4])]
                self.assertLessEqual(sum(changed), TWICE.get(type(module).__name__, 0), changed)

    def test_functions_that_compute_all_gradients_at_once(self):
        for module in at_once():
            with self.subTest(str(module)):
                whole, whole_weights = self.run_cells(module, ["F", "BW"])
                Fused.calls = 0
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always")
                    split, weights = self.run_cells(module, ["F", "B", "W"])
                alone = isinstance(getattr(module, "before", None), nn.Identity)
                self.assertEqual(sum("W does nothing" in str(w.message) for w in said), 3 if alone else 0)
                if alone or STARTS_AT_EDGES:
                    self.assertEqual(Fused.calls, 3 * len(getattr(module, "scales", ())))
                self.assertTrue(same(whole, split))
                for was, now in zip(whole_weights[-1], weights[-1]):
                    self.assertTrue(torch.allclose(was, now, rtol=1e-5, atol=1e-6))
                self.assertEqual(alone, same(weights[-2], weights[-1]))

    def test_a_gradient_that_a_function_wrote_into_is_not_used(self):
        module = ThenBias()
        whole, whole_weights = self.run_cells(module, ["F", "BW"])
        if STARTS_AT_EDGES:
            with self.assertRaisesRegex(RuntimeError, "wrote into the gradient that it got, which W needs"):
                self.run_cells(module, ["F", "B", "W"])
        else:
            self.assertTrue(same(whole_weights[-1], self.run_cells(module, ["F", "B", "W"])[1][-1]))
        # A stage hands its gradient to the one before it on the same rank.
        later, earlier = ThenBias(), OwnScale()
        stage, cell = stage_and_cell(later, number=2)
        stage.module.scales = nn.ParameterList()
        back, of_back = stage_and_cell(earlier)
        of_back.x, cell.back = (torch.ones(ROWS, WIDTH),), of_back
        back.forward(of_back)
        cell.x, cell.dy = of_back.out, [torch.ones(ROWS, WIDTH)]
        stage.forward(cell)
        stage.backward_input(cell)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            back.backward_input(of_back)
        with self.assertRaisesRegex(RuntimeError, "wrote into the gradient that it got, which W needs"):
            stage.backward_weight(cell)
        # So does the loss, whose gradient is the same for all micro-batches.
        stage, cell = stage_and_cell(nn.Identity(), last=True)
        stage.loss_fn = lambda output, target: Fused.apply(output.sum(), target)
        for _ in range(2):
            cell.x, cell.target = (torch.ones(ROWS, WIDTH),), (torch.tensor(3.0),)
            stage.forward(cell)
            stage.backward_input(cell)
            self.assertTrue(torch.equal(cell.dx[0], torch.full((ROWS, WIDTH), 3.0)))

    def test_hooks_see_what_autograd_did_not_add(self):
        if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
            self.skipTest("needs torch 2.1")
        for module in (Twice(), Block(0)):
            seen = []
            for p in module.parameters():
                p.register_post_accumulate_grad_hook(seen.append)
            self.run_cells(module, ["F", "B", "W"])
            self.assertEqual(len(seen), 3 * len(list(module.parameters())))

    def test_checkpoints(self):
        module = Checkpointed()
        self.run_cells(module, ["F", "B", "W"])
        if hasattr(torch.utils.checkpoint, "GraphExecGroup"):
            self.assertEqual(module.forwards, 3 * 4)  # F, B and W, and one in out_shapes
        if hasattr(torch.utils.checkpoint, "create_selective_checkpoint_contexts"):
            products = [torch.ops.aten.addmm.default]
            module = Checkpointed(context_fn=lambda: torch.utils.checkpoint.create_selective_checkpoint_contexts(
                products))
            with self.assertRaisesRegex(RuntimeError, "a selective checkpoint allows one backward.*without context_fn"):
                self.run_cells(module, ["F", "B", "W"])

    def test_b_computes_no_weight_gradients(self):
        module = nn.Sequential(nn.Linear(WIDTH, 512, bias=False), nn.Linear(512, WIDTH, bias=False))
        from torch.profiler import profile
        counts = {}
        for order in (["F", "B"], ["F", "B", "W"]):
            with profile() as profiled:
                self.run_cells(module, order)
            counts[len(order)] = sum(e.count for e in profiled.key_averages() if e.key == "aten::mm")
        products = 3 * (3 * 2)  # micro-batches x (F, B and W of two layers)
        self.assertLessEqual(counts[2], 3 * (2 + 2 + 2))  # out_shapes runs a forward more
        if STARTS_AT_EDGES:
            self.assertLessEqual(counts[3], products + 3 * 2)

    def test_store(self):
        module = OwnKernel()
        whole, whole_weights = self.run_cells(module, ["F", "BW"], "store")
        split, weights = self.run_cells(module, ["F", "B", "W"], "store")
        self.assertTrue(same(whole, split))
        self.assertTrue(same(whole_weights[-1], weights[-1]))
        self.assertTrue(same(weights[2][:1], weights[4][:1]))      # B left the weight of the kernel
        self.assertFalse(same(weights[2][1:], weights[4][1:]))     # but not the bias
        self.assertFalse(module.weight.grad.requires_grad)         # W keeps no graph
        with self.assertRaisesRegex(RuntimeError, "no B is running"):
            WeightGradStore.put(print)

    def test_recompute_repeats_random_numbers(self):
        module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5))
        x = torch.randn(ROWS, WIDTH)
        stage, cell = stage_and_cell(module, again=True)
        cell.x = (x,)
        torch.manual_seed(5)
        stage.forward(cell)
        torch.rand(3)
        before = torch.get_rng_state()
        stage.forward_again(cell)
        self.assertTrue(torch.equal(before, torch.get_rng_state()))
        cell.dy = [torch.ones(ROWS, WIDTH)]
        kept = (cell.out[0] != 0).float()
        stage.backward(cell)
        expected = 2 * kept @ module[0].weight
        self.assertTrue(torch.allclose(cell.dx[0], expected))

    def test_nothing_is_kept(self):
        class Probe(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
                self.seen = []

            def forward(self, x):
                early = self.a(x)
                inner = nn.functional.gelu(early)
                y = self.b(inner)
                self.seen += [weakref.ref(t) for t in (x, inner, y, early)]
                return y

        gc.disable()
        try:
            for order in (["BW"], ["B", "W"]):
                module = Probe()
                stage, cell = stage_and_cell(module)
                cell.x = (torch.randn(ROWS, WIDTH),)
                stage.forward(cell)
                x, inner, y, early = module.seen
                cell.out = None  # sent
                if STARTS_AT_EDGES:
                    self.assertIsNone(y(), "the output outlives its message")
                cell.dy = [torch.ones(ROWS, WIDTH)]
                dy = weakref.ref(cell.dy[0])
                for op in order:
                    (stage.backward if op == "BW" else stage.backward_input if op == "B" else
                     stage.backward_weight)(cell)
                    if op == "B" and STARTS_AT_EDGES:
                        self.assertIsNotNone(inner(), "W needs it")
                        self.assertIsNone(early(), "only B needed it")
                cell.dx = None
                for kept in (x, inner, y, early, dy):
                    self.assertIsNone(kept(), order)
                # With recompute F keeps the input alone.
                module.seen = []
                stage, cell = stage_and_cell(module, again=True)
                cell.x = (torch.randn(ROWS, WIDTH),)
                stage.forward(cell)
                cell.out = None
                self.assertEqual([t() is None for t in module.seen], [False, True, True, True])
        finally:
            gc.enable()

    def test_overlap(self):
        calls = []

        class Both(Overlap):
            def forward_backward(self, forward, backward):
                calls.append((forward.stage, forward.microbatch, backward.stage, backward.microbatch))
                torch.autograd.backward(backward.roots, backward.grads)
                return forward.module(*forward.inputs, **forward.kwargs)

        results = []
        for overlap in (None, Both()):
            module, other = Block(1), Block(2)
            stage, cell = stage_and_cell(module)
            behind, of_other = stage_and_cell(other, number=2)
            x = torch.ones(ROWS, WIDTH)
            of_other.x, cell.x = (x.clone(),), (x.clone(),)
            behind.forward(of_other)
            of_other.dy = [x]
            stage.forward_backward(cell, behind, of_other, overlap)
            results.append([cell.out[0], of_other.dx[0]] + gradients(other))
        self.assertEqual(calls, [(1, 0, 2, 0)])
        self.assertTrue(same(*results))


if __name__ == "__main__":
    unittest.main()
