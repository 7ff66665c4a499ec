"""Component plans on the streams of an emulated GPU: no race of data or memory, and each that is made by hand is found."""

import contextlib
import unittest
import unittest.mock

from torch_components_test import costs_of, pair
from torch_layers import WIDTH, Moe, Plain, batch, layers_of, loss_fn
from torch_model import rows_of, torch

import contraflow as cf
from contraflow.torch import PlanSchedule, run_local
from contraflow.torch.walk import Walk

if not hasattr(torch, "get_default_device"):
    raise SystemExit(77)
from torch_emulator import Machine  # noqa: E402


class Hard(Moe):
    """With weights in its exchanges, and outputs that are not contiguous."""

    def dispatch(self, tokens):
        return super().dispatch(tokens * self.scale)

    def combine(self, rows, h, gate):
        return (super().combine(rows, h, gate) * self.scale).t().contiguous().t()


def stages_of(plan, rank, hard=False, **options):
    """The layers of a rank. Hard ones have an embedding and a head more than the plan, which share a weight where one
    rank holds both."""
    stages = {s: layers_of(plan, s, None, None, 2, **options) for s in plan.stages_of(rank)}
    if hard:
        for layer in (layer for layers in stages.values() for layer in layers if isinstance(layer, Moe)):
            layer.__class__, layer.scale = Hard, torch.nn.Parameter(torch.full((WIDTH,), 1.1))
        embedding, head = Plain(98), Plain(99)
        if 0 in stages:
            stages[0].insert(0, embedding)
        if plan.stages - 1 in stages:
            stages[plan.stages - 1].append(head)
            if 0 in stages:
                head.a.weight = embedding.a.weight
    return stages


def trained(text, machine=None, change=lambda schedule: None, steps=2, **options):
    """Losses and gradients by rank of a plan whose ranks are threads, on the emulated GPU or else on lanes that are
    threads as well."""
    plan = cf.Plan.from_json(text)
    operation = Walk._run_on_lane

    def named(walk, operations, position):
        machine.local.label = str(walk.program.instructions[walk.index_of[position]])
        operation(walk, operations, position)
        machine.local.label = "after " + machine.local.label

    def work(links):
        rank = links.rank
        stages = stages_of(plan, rank, **options)
        schedule = PlanSchedule(plan, stages, loss_fn, links=links)
        if machine is not None:
            for lane, stream in schedule._walk.lanes._streams.items():
                stream.name = f"rank {rank} {lane}"
        change(schedule)
        inputs, targets = batch(plan.microbatches)
        x, target = rows_of(plan, rank, 0, inputs), rows_of(plan, rank, plan.stages - 1, targets)
        arguments, losses, of_eval = [] if x is None else [x], [], []
        with contextlib.nullcontext() if machine is None else machine.mode():
            for _ in range(steps):
                for layers in stages.values():
                    for layer in layers:
                        layer.zero_grad(set_to_none=True)
                schedule.step(*arguments, target=target, losses=losses)
            schedule.eval(*arguments, target=target, losses=of_eval)
        assert len(losses) == len(of_eval) and all(map(torch.equal, losses, of_eval))
        assert not schedule._walk._held
        return losses, {(s, k, name): p.grad for s, layers in stages.items() for k, layer in enumerate(layers)
                        for name, p in layer.named_parameters()}

    if machine is None:
        return run_local(plan.ranks, work, timeout=60)
    with machine.installed(), unittest.mock.patch.object(Walk, "_run_on_lane", named):
        return run_local(plan.ranks, work, device="cpu", links=machine.links, timeout=60)


MIXED = "pddmmmmp"
SCHEDULES = ("1f1b", "zb-1p", "zb-v", "dualpipe")


def plans():
    """Component plans of all schedules: recompute of parts, dense and plain layers, two routes."""
    for name in SCHEDULES:
        yield pair(name, 2, 4, 1), {"hard": True}
        yield pair(name, 2, 4, MIXED), {}
        yield pair(name, 2, 4, MIXED, recompute="all-but-attention"), {}
        yield pair(name, 2, 4, MIXED, recompute="full"), {}
        yield pair(name, 2, 4, 2), {"explicit": True}
    for placement in ("linear", "v", "interleaved", "bidirectional"):
        yield pair("auto", 2, 4, 2, placement=placement), {}


class StreamsTest(unittest.TestCase):
    def test_no_race(self):
        for both, options in plans():
            if both is None:
                continue
            machine = Machine()
            plan = cf.Plan.from_json(both[0])
            with self.subTest(plan=plan.schedule, layers=plan.stage_layers, **options):
                found, expected = (trained(both[0], on, **options) for on in (machine, None))
                self.assertGreater(machine.operations, 100)
                for (losses, grads), (right, right_grads) in zip(found, expected):
                    self.assertTrue(all(map(torch.equal, losses, right)))
                    self.assertEqual(grads.keys(), right_grads.keys())
                    for name, grad in grads.items():
                        self.assertTrue(torch.equal(grad, right_grads[name]), name)
                self.assertEqual([], list(dict.fromkeys(machine.races))[:8], len(machine.races))


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
