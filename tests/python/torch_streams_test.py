"""Component plans on the streams of an emulated GPU: no race of data or memory, and each that is made by hand is found."""

import contextlib
import random
import sys
import unittest
import unittest.mock

from torch_components_test import pair
from torch_layers import WIDTH, Moe, Plain, batch, layers_of, loss_fn
from torch_model import rows_of, torch

import contraflow as cf
from contraflow.torch import PlanSchedule, run_local
from contraflow.torch.order import foreign
from contraflow.torch.walk import Walk

if not hasattr(torch, "get_default_device"):
    raise SystemExit(77)
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
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


def trained(text, machine=None, change=lambda schedule: None, steps=2, evaluates=True, **options):
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
            if evaluates:
                schedule.eval(*arguments, target=target, losses=of_eval)
        assert not evaluates or len(losses) == len(of_eval) and all(map(torch.equal, losses, of_eval))
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
    return [(both, options) for both, options in _plans() if both is not None]


def _plans():
    for name in SCHEDULES:
        yield pair(name, 2, 4, 1), {"hard": True}
        yield pair(name, 2, 4, MIXED), {}
        yield pair(name, 2, 4, MIXED, recompute="all-but-attention"), {}
        yield pair(name, 2, 4, MIXED, recompute="full"), {}
        yield pair(name, 2, 4, 2), {"explicit": True}
    for placement in ("linear", "v", "interleaved", "bidirectional"):
        yield pair("auto", 2, 4, 2, placement=placement), {}


def mutated(text, rank, change, **options):
    """The races of one step with a schedule of a rank changed."""
    machine = Machine()
    trained(text, machine, lambda schedule: change(schedule) if schedule.rank == rank else None, 1, False, **options)
    return machine.races


def dependencies(text):
    """(rank, position, position that it waits for) between the lanes of operations, without those that something else
    orders: the wait for a message, the turn of the memory of a RECV, and the loss, for which the exchange waits."""
    found = []

    def note(schedule):
        walk = schedule._walk
        of = [walk.program.instructions[at] for at in walk.index_of]
        losses = [at for at, i in enumerate(of) if i.op == "COMBINE_B" and i.stage == schedule.plan.stages - 1]
        found.extend((schedule.rank, position, other) for position, others in enumerate(walk.lanes.awaited)
                     for other in others if not any(of[at].op.startswith("RECV") for at in (position, other))
                     and not (of[position].lane == "alltoall" and any(other < at < position for at in losses)))
    trained(text, Machine(), note, 1, False)
    return sorted(found)


class Release:
    """One entry of the table of a walk that keeps tensors of other lanes: noted, removed, or moved to the instruction
    before on their lane."""

    def __init__(self, number=None, moved=False):
        self.number, self.moved = number, moved
        self.entries = []  # instruction that read, lane of the tensors, instruction of it that they live to
        self.freed = None  # whether the host gave them back before the last instruction on their lane in between

    def __call__(self, schedule):
        self.walk, self.order = schedule._walk, schedule._walk.program.order
        self.walk._hold = self.hold
        run = schedule._walk.lanes.run

        def watched(operation):
            def one(position):
                if self.number is not None and len(self.entries) > self.number and self.freed is None and (
                        self.walk.index_of[position] == self.between(self.number)[-1]):
                    self.freed = any(storage.expired() for storage in self.storages)
                operation(position)
            run(one)
        self.walk.lanes.run = watched

    def between(self, number):
        """The instructions on the lane of an entry that begin after it was made and before it is given up."""
        at, lane, free = self.entries[number]
        return [k for k in self.order._of_lane[lane] if k > at and (free is None or k < free)]

    def hold(self, at, read):
        for lane, tensors in foreign(read, self.order.lanes[at]).items():
            free = self.order.free_at(lane, at)
            self.entries.append((at, lane, free))
            if len(self.entries) - 1 == self.number:
                self.storages = [StorageWeakRef(x.untyped_storage()) for x in tensors]
                free = self.between(self.number)[-1]
                if not self.moved:
                    continue
            self.walk._held.setdefault(free, []).append(tensors)


def releases(text, rank):
    """Races that are missed where an entry is removed or moved, and how many changes made one."""
    noted = Release()
    assert not mutated(text, rank, noted)
    missed, found = [], 0
    for number in range(len(noted.entries)):
        if not noted.between(number):
            continue
        removed = Release(number)
        races = mutated(text, rank, removed)
        if not removed.freed and not races:
            continue  # something else keeps the tensors as long
        for name, races in (("removed", races), ("moved", mutated(text, rank, Release(number, True)))):
            found += bool(races)
            if not races:
                missed.append((name, rank, number, noted.entries[number]))
    return missed, found


class StreamsTest(unittest.TestCase):
    full = False

    def test_no_race(self):
        for both, options in plans() if self.full else FEW:
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

    def test_removed_events(self):
        for text in [FEW[0][0][0]] + [both[0] for both, _ in plans()][::3] if self.full else [SMALL]:
            every = dependencies(text)
            self.assertGreater(len(every), 10)
            for rank, position, other in every if self.full else random.Random(1).sample(every, 10):
                races = mutated(text, rank, lambda schedule: schedule._walk.lanes.awaited[position].remove(other))
                self.assertTrue(races, (rank, position, other))

    def test_releases(self):
        for text, least in ((SMALL, 4), (AGAIN, 8), *([(FEW[0][0][0], 20)] if self.full else [])):
            results = [releases(text, rank) for rank in range(2)]
            self.assertEqual([], [missed for missed, _ in results for missed in missed])
            self.assertGreaterEqual(sum(found for _, found in results), least)


SMALL = pair("zb-1p", 2, 2, 1)[0]
AGAIN = pair("1f1b", 2, 3, "dmm", recompute="full")[0]
FEW = [(pair("dualpipe", 2, 4, 1), {"hard": True}), (pair("zb-v", 2, 3, MIXED, recompute="all-but-attention"), {}),
       (pair("zb-1p", 2, 3, MIXED, recompute="full"), {}), (pair("auto", 2, 4, 1, placement="linear"), {"explicit": True})]


if __name__ == "__main__":
    torch.set_num_threads(1)
    StreamsTest.full = "--full" in sys.argv
    unittest.main(argv=[word for word in sys.argv if word != "--full"])
