"""Bytes that a rank holds after each instruction: those that its parts have made and still need, and no more at the peak
than the plan says. Lanes run in the order of the program, as a GPU is given them."""

import sys
import unittest

from torch_model import rows_of, torch

import contraflow as cf
from contraflow.torch import PlanSchedule, run_local

if not hasattr(torch, "get_default_device"):  # backwards in parts without gradient edges hold more
    raise SystemExit(77)
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

LAYERS = 2  # of a stage
ROWS, THIN, WIDE = 8, 2, 512
UNIT = 4 * ROWS * WIDE  # bytes of a wide value; values between parts are thin
PARTS = {"attn_f": 10, "attn_b": 12, "attn_w": 5, "mlp_f": 9, "mlp_b": 9, "mlp_w": 8, "dispatch_f": 6, "combine_f": 9,
         "dispatch_b": 9, "combine_b": 6}
VALUES = {"input": 0, "attention": 2 * UNIT, "scores": UNIT, "rows": 0, "gate": 2 * UNIT, "hidden": 4 * UNIT,
          "combined": 0}
HOLDS = {"ATTN": (3, 2), "MLP": (6, 4)}  # units from F on, and of them from B to W


class Block(torch.nn.Module):
    """Holds three wide values for B, and for W the last of them and the gradient of the first product."""

    def __init__(self, wide):
        super().__init__()
        self.up, self.down = torch.nn.Linear(THIN, wide), torch.nn.Linear(wide, THIN)

    def forward(self, x):
        return self.down(torch.tanh(torch.sigmoid(torch.tanh(self.up(x)))))


class Moe(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.e = Block(WIDE), Block(2 * WIDE)

    def attention(self, x):
        return self.a(x), x

    def dispatch(self, tokens):
        return tokens.clone()

    def experts(self, rows):
        return self.e(rows)

    def combine(self, rows, x):
        return rows + x


class Live(TorchDispatchMode):
    """Storages that operations of this thread have made and that are alive."""

    def __init__(self, parameters):
        super().__init__()
        self.parameters, self.known = parameters, {p.untyped_storage()._cdata for p in parameters}
        self.live, self.counts = {}, True

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if self.counts and torch.is_tensor(x) and x.untyped_storage()._cdata not in self.known:
                storage = x.untyped_storage()
                self.live.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        return result

    def bytes(self):
        """Without the gradients of parameters."""
        self.live = {key: of for key, of in self.live.items() if not of[0].expired()}
        grads = {p.grad.untyped_storage()._cdata for p in self.parameters if p.grad is not None}
        return sum(count for key, (_, count) in self.live.items() if key not in grads)


class InOrder:
    """Lanes one operation at a time."""

    failed = None

    def __init__(self, count):
        self.count = count

    def run(self, operation):
        for position in range(self.count):
            operation(position)

    def places(self):
        return []


def measured(plan):
    """Bytes after each instruction of the second step, by rank."""
    def work(links):
        stages = {s: [Moe() for _ in range(LAYERS)] for s in plan.stages_of(links.rank)}
        schedule = PlanSchedule(plan, stages, torch.nn.functional.mse_loss, links=links)
        walk, held = schedule._walk, {}
        if walk.lanes is not None:
            walk.lanes = InOrder(len(walk.operations))
        parameters = [p for layers in stages.values() for layer in layers for p in layer.parameters()]

        def noted(waiting, work, at):
            def both():
                live.counts = walk.program.instructions[at].op not in ("REDUCE", "STEP")
                work()
                held[at] = live.bytes()
            return waiting, both
        walk.operations = [noted(*operation, at) for operation, at in zip(walk.operations, walk.index_of)]
        rows = torch.randn(plan.microbatches, ROWS, THIN)
        x, target = rows_of(plan, links.rank, 0, rows), rows_of(plan, links.rank, plan.stages - 1, rows)
        for _ in range(2):
            for p in parameters:
                p.grad = None
            live = Live(parameters)
            with live:
                schedule.sync_parameters()
                schedule.step(*([] if x is None else [x]), target=target)
        return [held[at] for at in range(len(held))]
    return run_local(plan.ranks, work, timeout=60)


def units(program):
    """Units that a rank must hold after each of its instructions."""
    holds = {**HOLDS, "": [LAYERS * sum(of) for of in zip(*HOLDS.values())]}
    again = {(i.stage, i.microbatch, i.layer, i.op[:-1].rstrip("_")) for i in program if i.op.endswith("R")}
    held, result = 0, []
    for i in program:
        part, _, way = i.op.rpartition("_")
        made, kept = holds.get(part, (0, 0))
        if way == "R" or way == "F" and (i.stage, i.microbatch, i.layer, part) not in again:
            held += made
        held -= (made - kept) * (way in ("B", "BW")) + kept * (way in ("W", "BW"))
        result.append(held)
    return result


class MemoryTest(unittest.TestCase):
    def check(self, name, level="component", **options):
        """Returns the peak of the fullest rank, held and said."""
        layer = {"name": "moe", "moe": PARTS, "values": VALUES, "output_bytes": 1,
                 "repeat": LAYERS * (4 if name == "zb-v" else 2)}
        costs = {"unit": "ms", "comm": {"latency": 1, "bytes": 1, "bandwidth": "100GB/s"}, "layers": [layer]}
        plan = cf.compile(name, ranks=2, microbatches=6, costs=costs, level=level, **options)
        said = plan.simulate().peak_bytes
        peaks = []
        for rank, held in enumerate(measured(plan)):
            wanted = units(plan.programs[rank])
            self.assertEqual([count // UNIT for count in held], wanted, (name, options, rank))
            self.assertLess(held[-1], 48 * 4 * ROWS * THIN)  # nor are thin ones left
            peaks.append(max(wanted))
            self.assertLessEqual(max(wanted) * UNIT, said[rank], (name, options, rank))
        return max(peaks) * UNIT, max(said)

    def test_the_fullest_rank_holds_what_the_plan_says(self):
        for name in ("1f1b", "zb-1p", "zb-v", "dualpipe"):
            held, said = self.check(name)
            self.assertEqual(held, said, name)
        for recompute in ("attention", "experts", "full", "layers=1"):
            held, said = self.check("zb-1p", recompute=recompute)
            self.assertEqual(held, said, recompute)

    def test_parts_that_run_again_are_held_from_there(self):
        for name in ("1f1b", "zb-v", "dualpipe"):
            for recompute in ("attention", "experts", "all-but-attention", "full"):
                self.check(name, recompute=recompute)

    def test_whole_stages(self):
        for name in ("1f1b", "zb-1p", "zb-v"):
            held, said = self.check(name, "comm")
            self.assertEqual(held, said, name)
            self.check(name, "comm", recompute="full")


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main(argv=sys.argv)
