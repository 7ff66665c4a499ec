"""Ranks as threads of one process: losses and gradients are those of processes over gloo, bit for bit; a rank that
fails ends the others."""

import tempfile
import unittest
import unittest.mock

from torch_components_test import pair
from torch_layers import batch, layers_of, loss_fn
from torch_model import dist, expect_success, rows_of, run_processes, torch

import contraflow as cf
from contraflow.torch import PlanSchedule, StepError, run_local
from contraflow.torch.order import _memory

PAIRS = [pair("dualpipe", 2, 4, 1), pair("zb-1p", 2, 3, "pddmmmmp", recompute="all-but-attention"),
         pair("auto", 2, 4, "mdmmp", placement="v")]
TEXTS = [text for both in PAIRS for text in both]


def trained(text, links, rank, **options):
    """Losses and gradients of two steps, losses of eval(), their mean and the norm over all ranks."""
    plan = cf.Plan.from_json(text)
    kinds = plan if plan.level == "component" else cf.Plan.from_json(PAIRS[TEXTS.index(text) // 2][0])
    stages = {s: layers_of(kinds, s, None, None, 2, **options) for s in plan.stages_of(rank)}
    if rank > 0:  # not the first holder of any stage that has two
        for s in stages:
            if min(r for r in range(plan.ranks) if s in plan.stages_of(r)) != rank:
                for p in stages[s][0].parameters():
                    torch.nn.init.zeros_(p)
    schedule = PlanSchedule(plan, stages, loss_fn, links=links)
    schedule.sync_parameters()
    inputs, targets = batch(plan.microbatches)
    x, target = rows_of(plan, rank, 0, inputs), rows_of(plan, rank, plan.stages - 1, targets)
    losses, of_eval = [], []
    for _ in range(2):
        schedule.step(*[] if x is None else [x], target=target, losses=losses)
    schedule.eval(*[] if x is None else [x], target=target, losses=of_eval)
    around = [schedule.loss(), *(schedule.clip_grad_norm_(0.1, norm_type) for norm_type in (2.0, float("inf")))]
    schedule.close()
    return losses, of_eval, around, [p.grad for layers in stages.values() for layer in layers for p in layer.parameters()]


def over_gloo(rank, folder):
    torch.save([trained(text, None, rank) for text in TEXTS], f"{folder}/{rank}")


class LocalTest(unittest.TestCase):
    def test_as_over_gloo(self):
        with tempfile.TemporaryDirectory() as folder:
            expect_success(run_processes(2, over_gloo, folder))
            expected = [torch.load(f"{folder}/{rank}") for rank in range(2)]
        for at, text in enumerate(TEXTS):
            found = run_local(2, lambda links: trained(text, links, links.rank))
            for rank in range(2):
                for one, other in zip(found[rank], expected[rank][at]):
                    self.assertEqual(len(one), len(other))
                    self.assertTrue(all(map(torch.equal, one, other)), (at, rank))

    def test_buckets(self):
        """Sums in small parts: the same bits."""
        def work(links):
            return trained(TEXTS[0], links, links.rank)
        whole = run_local(2, work)
        with unittest.mock.patch("contraflow.torch.reduce.BUCKET", 300):
            parts = run_local(2, work)
        for one, other in zip(whole, parts):
            self.assertTrue(all(map(torch.equal, one[-1], other[-1])))
            self.assertGreater(len(set(map(_memory, other[-1]))), len(set(map(_memory, one[-1]))))

    def test_failure(self):
        plan = cf.compile("1f1b", ranks=2, microbatches=4)

        class Fails(torch.nn.Linear):
            def forward(self, x):
                raise ArithmeticError("out of numbers")

        def work(links):
            module = (torch.nn.Linear if links.rank == 0 else Fails)(8, 8)
            schedule = PlanSchedule(plan, {links.rank: module}, loss_fn, links=links)
            x = torch.ones(8, 8)
            schedule.step(*[x] if links.rank == 0 else [], target=x)
        with self.assertRaisesRegex(StepError, "rank 1, F s1 m0 .*: ArithmeticError: out of numbers"):
            run_local(2, work)

    def test_a_part_that_returns_a_wrong_thing_is_named(self):
        plan = cf.Plan.from_json(pair("zb-1p", 1, 2, 1)[0])

        def message(method, change):
            def work(links):
                layer, = layers_of(plan, 0, None, None, 2, explicit=True)
                right = getattr(layer, method)
                setattr(layer, method, lambda *values: change(right(*values)))
                x, target = (rows.flatten(0, 1) for rows in batch(plan.microbatches))
                PlanSchedule(plan, {0: [layer]}, loss_fn, links=links).step(x, target=target)
            with self.assertRaises(StepError) as caught:
                run_local(1, work)
            return str(caught.exception)
        self.assertRegex(message("experts", lambda rows: None),
                         "MLP_F s0 l0 m0.*: TypeError: experts of layer 0 of stage 0 must return a tensor, or a tuple of "
                         "tensors and anything else, returned None")
        self.assertRegex(message("experts", lambda rows: rows[1:]),
                         r"COMBINE_F s0 l0 m0.*; combine of layer 0 of stage 0 got \[3, 8\], \[4, 8\], \[4, 8\] of experts of "
                         "layer 0 of stage 0")
        self.assertRegex(message("dispatch_backward", lambda grad: grad[1:]),
                         r"DISPATCH_B s0 l0 m0.*: TypeError: a backward must return a gradient, or None, for each of \[4, 8\], "
                         r"returned \[3, 8\]")


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert not dist.is_initialized()
    unittest.main()
