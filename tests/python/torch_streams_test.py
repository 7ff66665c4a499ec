"""Component plans on the streams of an emulated GPU: no race of data or memory, and each that is made by hand is found."""

import unittest
import unittest.mock

from torch_components_test import costs_of, pair
from torch_layers import batch, layers_of, loss_fn, reference
from torch_model import rows_of, torch

import contraflow as cf
from contraflow.torch import PlanSchedule, run_local
from contraflow.torch.walk import Walk

if not hasattr(torch, "get_default_device"):
    raise SystemExit(77)
from torch_emulator import Machine  # noqa: E402


def trained(text, machine, change=lambda schedule: None, steps=2, **options):
    """Runs a plan on the emulated GPU, each rank in a thread. Gradients are those of one process."""
    plan = cf.Plan.from_json(text)
    right, operation = {}, Walk._run_on_lane

    def named(walk, operations, position):
        machine.local.label = walk.labels[position]
        machine.local.label = f"{walk.program.instructions[walk.index_of[position]]}"
        operation(walk, operations, position)

    def work(links):
        rank = links.rank
        stages = {s: layers_of(plan, s, None, None, 2, **options) for s in plan.stages_of(rank)}
        schedule = PlanSchedule(plan, stages, loss_fn, links=links)
        for lane, stream in schedule._walk.lanes._streams.items():
            stream.name = f"rank {rank} {lane}"
        change(schedule)
        inputs, targets = batch(plan.microbatches)
        x, target = rows_of(plan, rank, 0, inputs), rows_of(plan, rank, plan.stages - 1, targets)
        arguments, losses, of_eval = [] if x is None else [x], [], []
        with machine.mode():
            for _ in range(steps):
                for layers in stages.values():
                    for layer in layers:
                        layer.zero_grad(set_to_none=True)
                schedule.step(*arguments, target=target, losses=losses)
                machine.local.label = "between steps"
            schedule.eval(*arguments, target=target, losses=of_eval)
        assert len(losses) == len(of_eval) and all(map(torch.equal, losses, of_eval))
        return {(s, k, name): p.grad for s, layers in stages.items() for k, layer in enumerate(layers)
                for name, p in layer.named_parameters()}

    with machine.installed(), unittest.mock.patch.object(Walk, "_run_on_lane", named):
        return run_local(plan.ranks, work, device="cpu", links=machine.links, timeout=60)


MIXED = "pddmmmmp"
SCHEDULES = ("1f1b", "zb-1p", "zb-v", "dualpipe")


def plans():
    """Component plans of all schedules: recompute of parts, dense and plain layers, two routes."""
    for name in SCHEDULES:
        yield pair(name, 2, 4, 1), {}
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
                found = trained(both[0], machine, **options)
                self.assertGreater(machine.operations, 100)
                self.assertEqual([], list(dict.fromkeys(machine.races))[:8], len(machine.races))


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
