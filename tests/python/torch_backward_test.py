"""F, B, W, BW and R of one stage: the same bits as a full backward, nothing early, nothing kept."""

import gc
import unittest
import weakref

from torch_model import Block, loss_fn, torch

from contraflow.torch import Overlap, WeightGradStore
from contraflow.torch.backward import STARTS_AT_EDGES
from contraflow.torch.stage import Cell, Stage

nn = torch.nn
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


def modules():
    torch.manual_seed(3)
    return [Block(0), Beside(), Stops(), nn.Identity(), nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(),
                                                             nn.Linear(16, WIDTH)),
            nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0), nn.GRU(WIDTH, WIDTH)]


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
                # B left the weights as the W before it did.
                self.assertTrue(same(weights[2], weights[4]))

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
