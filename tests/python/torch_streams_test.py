"""Component plans on the streams of an emulated GPU: no race of data or memory, and each that is made by hand is found."""

import contextlib
import json
import random
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

from torch_components_test import pair
from torch_layers import WIDTH, Moe, Plain, batch, layers_of, loss_fn
from torch_model import rows_of, run_processes, torch

import contraflow as cf
from contraflow.torch import PlanSchedule, run_local
from contraflow.torch.order import LaneOrder, foreign
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
    orders: the wait for a message, the turn of the memory of a RECV, other dependencies, and the loss, which an exchange
    waits for; and without those of the first layer's backward, which has no input gradient, of a SEND on W, of an R on
    what its forward does after it, and of attention's B or, where attention does not run again, DISPATCH_R on the R of
    the layer before."""
    found, parts = [], ("ATTN", "DISPATCH", "MLP", "COMBINE")

    def note(schedule):
        walk = schedule._walk
        program, order, position_of = walk.program.instructions, walk.program.order, {}
        for position, at in enumerate(walk.index_of):
            position_of.setdefault(at, position)
        awaited = list(order.awaited)
        for at, i in enumerate(program):
            if i.op == "COMBINE_B" and i.stage == schedule.plan.stages - 1:
                awaited[at] += tuple(k for k in order._of_lane["compute"] if k < at)[-1:]
        for at, i in enumerate(program):
            for other in order.awaited[at]:
                rest = [*awaited[:at], [k for k in awaited[at] if k != other], *awaited[at + 1:]]
                if not (program[other].op.startswith("RECV") or i.op.startswith("RECV")
                        or i.op == "ATTN_B" and i.stage == i.layer == 0
                        or i.op == "SEND_B" and program[other].op == "ATTN_W"
                        or i.op == "ATTN_B" and program[other].op == "COMBINE_R"
                        or i.op == "DISPATCH_R" and program[other].layer < i.layer
                        or i.op.endswith("_R") and program[other].op.endswith("_F")
                        and (i.layer, parts.index(i.op[:-2])) <= (
                            program[other].layer, parts.index(program[other].op[:-2]))
                        or LaneOrder(program, rest).before(other, at)):
                    found.append((schedule.rank, position_of[at], position_of[other]))
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
        """The instructions on the lane of an entry that begin after it was made and before it is given up. STEP waits
        for all ranks, whose messages order more than the lanes do."""
        at, lane, free = self.entries[number]
        return [k for k in self.order._of_lane[lane] if k > at and (free is None or k < free)
                and self.walk.program.instructions[k].op != "STEP"]

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
                for loss in ("mse_loss", "mse_loss_backward"):
                    self.assertTrue(machine.ran[loss] <= {"rank 0 stream", "rank 1 stream"}, machine.ran[loss])

    def test_removed_events(self):
        for text in [SMALL, FEW[0][0][0]] + [both[0] for both, _ in plans()] if self.full else [SMALL]:
            every = dependencies(text)
            self.assertGreater(len(every), 10)
            for rank, position, other in random.Random(1).sample(every, min(len(every), 30 if self.full else 10)):
                races = mutated(text, rank, lambda schedule: schedule._walk.lanes.awaited[position].remove(other))
                self.assertTrue(races, (cf.Plan.from_json(text).schedule, rank, position, other))

    def test_releases(self):
        for text, least in ((TWO, 4), (AGAIN, 8), *([(FEW[0][0][0], 12)] if self.full else [])):
            results = [releases(text, rank) for rank in range(2)]
            self.assertEqual([], [missed for missed, _ in results for missed in missed])
            self.assertGreaterEqual(sum(found for _, found in results), least)


def stops_at(machine, schedule, position):
    """From an operation on nothing is done on the GPU of this rank."""
    walk = schedule._walk
    waiting, work = walk.operations[position]

    def stop():
        machine.stopped.add(threading.current_thread().name)
        work()
    walk.operations[position] = waiting, stop


def hangs(_, text):
    """Rank 1 stops; its watch says so and ends the process."""
    machine = Machine()
    with unittest.mock.patch("contraflow.torch.watch.PERIOD", 0.1), machine.installed():
        run_local(2, on_gpu(text, machine, lambda schedule: time.sleep(30)), device="cpu", timeout=1.0)


def on_gpu(text, machine, after, stop_rank=1, **options):
    """Work for run_local: two steps; in the second one the GPU of a rank stops at the backward of micro-batch 0."""
    plan = cf.Plan.from_json(text)

    def work(links):
        rank = links.rank
        stages = {s: layers_of(plan, s, None, None, 2) for s in plan.stages_of(rank)} if (
            plan.level == "component") else {s: Plain(s) for s in plan.stages_of(rank)}
        schedule = PlanSchedule(plan, stages, loss_fn, links=links, **options)
        inputs, targets = batch(plan.microbatches)
        x, target = rows_of(plan, rank, 0, inputs), rows_of(plan, rank, plan.stages - 1, targets)
        for step in range(2):
            if step == 1 and rank == stop_rank:
                at = next(at for at, i in enumerate(plan.programs[rank]) if i.op in ("BW", "B", "MLP_B"))
                stops_at(machine, schedule, schedule._walk.index_of.index(at))
            schedule.step(*[] if x is None else [x], target=target)
        return after(schedule)
    return work


class ProgressTest(unittest.TestCase):
    def test_places(self):
        """The host has issued the step; its place is that of the GPU, on each lane."""
        whole = cf.compile("1f1b", ranks=2, microbatches=3).to_json()
        for text, expected in ((SMALL, ["is in MLP_B s1 l0 m0 ", "is in DISPATCH_F s1 l0 m1 ", "waits in SEND_B s1 m0 to=0 "]),
                               (whole, ["is in BW s1 m0 "])):
            machine = Machine()
            with machine.installed():
                places = run_local(2, on_gpu(text, machine, lambda schedule: schedule._place()), device="cpu")
            self.assertEqual(places[0], "between steps")
            found = sorted(places[1].split("; "))
            self.assertEqual(len(found), len(expected), places[1])
            for place, beginning in zip(found, sorted(expected)):
                self.assertTrue(place.startswith(beginning), place)

    def test_timeout(self):
        began = time.monotonic()
        (code, printed), = run_processes(1, hangs, SMALL, limit=60)
        self.assertEqual(code, 1, printed)
        self.assertRegex(printed, "rank 1: is in MLP_B s1 l0 m0 .*: no progress on the GPU for [12] s\n"
                                  "  rank 0: between steps\n  rank 1: failed: is in MLP_B s1 l0 m0 ")
        self.assertIn("the step does not end by itself, so this process ends", printed)
        self.assertLess(time.monotonic() - began, 25)

    def test_timing(self):
        """Every second step: times of the GPU. Without them, of the host."""
        for text in (SMALL, cf.compile("1f1b", ranks=2, microbatches=3).to_json()):
            for every in (0, 2):
                machine = Machine()
                with machine.installed(), tempfile.TemporaryDirectory() as folder:
                    def traced(schedule):
                        schedule.trace(f"{folder}/trace.json")
                        walk = schedule._walk
                        return walk.times(), (walk.starts, walk.ends), walk.program.order and walk.lanes.lanes
                    results = run_local(2, on_gpu(text, machine, traced, stop_rank=None, timing_every=every), device="cpu")
                    with open(f"{folder}/trace.json") as file:
                        slices = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X"]
                self.assertEqual(len(slices), sum(map(len, cf.Plan.from_json(text).programs)))
                for (starts, ends), host, lanes in results:
                    self.assertEqual((starts, ends) == host, every == 0)
                    lanes = lanes or ["compute"] * len(starts)
                    for lane in set(lanes):
                        of = [at for at, other in enumerate(lanes) if other == lane]
                        times = [t for at in of for t in (starts[at], ends[at])]
                        self.assertEqual(times, sorted(times), lane)


SMALL = pair("zb-1p", 2, 2, 1)[0]
TWO = pair("zb-1p", 2, 2, 2)[0]  # layers a stage: the first layer of the model leaves less to W
AGAIN = pair("1f1b", 2, 3, "dmm", recompute="full")[0]
FEW = [(pair("dualpipe", 2, 4, 1), {"hard": True}), (pair("zb-v", 2, 3, MIXED, recompute="all-but-attention"), {}),
       (pair("zb-1p", 2, 3, MIXED, recompute="full"), {}), (pair("auto", 2, 4, 1, placement="linear"), {"explicit": True})]


if __name__ == "__main__":
    torch.set_num_threads(1)
    StreamsTest.full = "--full" in sys.argv
    unittest.main(argv=[word for word in sys.argv if word != "--full"])
