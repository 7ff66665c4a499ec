"""A rank that is killed, fails or hangs: every process ends soon, and says who did what."""

import os
import re
import signal
import time
import unittest
import unittest.mock

from torch_model import (Block, Processes, batch, dist, loss_fn, rows_of, torch)

import contraflow as cf
import contraflow.torch as cft
from contraflow.torch.watch import Watch

RANKS, MICROBATCHES = 3, 6


class Bad(Block):
    """Does something at its third forward."""

    def __init__(self, number, what):
        super().__init__(number)
        self.what, self.calls = what, 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 3:
            self.what()
        return super().forward(x)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def fail():
    raise ArithmeticError("out of numbers")


def hang():
    time.sleep(60)


def work(rank, what, bad_rank, text):
    plan = cf.Plan.from_json(text)
    module = Bad(rank, what) if rank == bad_rank else Block(rank)
    schedule = cft.PlanSchedule(plan, {rank: module}, loss_fn, timeout=2.0 if what is hang else 60.0)
    inputs, targets = batch(plan.microbatches)
    schedule.step(rows_of(plan, rank, 0, inputs), target=rows_of(plan, rank, RANKS - 1, targets),
                  losses=[])


def without_loss(rank, text):
    plan = cf.Plan.from_json(text)
    cft.PlanSchedule(plan, {rank: Block(rank)}, None)


def other_plan(rank, text):
    plan = cf.compile("gpipe", ranks=RANKS, microbatches=2) if rank == 1 else cf.Plan.from_json(text)
    cft.PlanSchedule(plan, {rank: Block(rank)}, loss_fn)


def other_option(rank, text, name, value):
    """Rank 1 has another value than the others, also of what only some ranks use."""
    options = {name: value} if rank == 1 else {}
    cft.PlanSchedule(cf.Plan.from_json(text), {rank: Block(rank)}, loss_fn, **options)


OPTIONS = {"scale_grads": False, "variable_shapes": True, "weight_grad": "store", "keep_rng": False, "timeout": 7.0,
           "grad_reduce": print, "on_step": print}


def all_options(rank, text):
    for name, value in OPTIONS.items():
        try:
            other_option(rank, text, name, value)
        except ValueError as error:
            assert f"process 1 has {name}=" in str(error) and "give all processes the same" in str(error), error
        else:
            raise AssertionError(name)


def options_of_a_replica(rank, text):
    """Process 3 differs, which is of the other pipeline and no replica of processes 0 and 2."""
    pipelines = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    replicas = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    plan = cf.compile("1f1b", ranks=2, microbatches=2, data_parallel=2)
    try:
        cft.PlanSchedule(plan, {rank % 2: Block(rank % 2)}, loss_fn, pipelines[rank // 2],
                         data_parallel=replicas[rank % 2], scale_grads=rank != 3)
    except ValueError as error:
        assert "process 3 has scale_grads=False, process 0 has scale_grads=True" in str(error), error
    else:
        raise AssertionError("taken")


class Shrinks(Block):
    """Drops a row at its third forward."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)[:1 if self.calls == 3 else None]


def other_shape(rank, text):
    plan = cf.Plan.from_json(text)
    schedule = cft.PlanSchedule(plan, {rank: Shrinks(rank) if rank == 0 else Block(rank)}, loss_fn)
    x = torch.ones(12, 8)
    schedule.step(x, target=x)


def wrong_rows(rank, text):
    plan = cf.Plan.from_json(text)
    schedule = cft.PlanSchedule(plan, {rank: Block(rank)}, loss_fn)
    x = torch.ones(11 if rank == 0 else 12, 8)
    schedule.step(x, target=x)


def variable_shape(rank, text):
    plan = cf.Plan.from_json(text)
    schedule = cft.PlanSchedule(plan, {rank: Block(rank)}, loss_fn, variable_shapes=True)
    x = torch.linspace(0, 1, 88).view(11, 8)  # chunks of 2 rows and one of 1
    outputs = schedule.step(x, target=x, return_outputs=True)
    if rank == RANKS - 1:
        expected = torch.nn.Sequential(*[Block(s) for s in range(RANKS)])(x)
        assert torch.allclose(outputs, expected), (outputs, expected)


class FailureTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        text = cf.compile("1f1b", ranks=RANKS, microbatches=MICROBATCHES).to_json()
        begin = time.monotonic()
        running = {(what, rank): Processes(RANKS, work, what, rank, text)
                   for what, rank in ((kill, 1), (kill, 0), (fail, 1), (hang, 1))}
        running.update((what, Processes(RANKS, what, text))
                       for what in (without_loss, other_plan, other_shape, wrong_rows, variable_shape, all_options))
        running[options_of_a_replica] = Processes(4, options_of_a_replica, text)
        cls.ended = {key: processes.results(30.0) for key, processes in running.items()}
        cls.took = time.monotonic() - begin

    def test_everything_ends(self):
        for key, results in self.ended.items():
            for rank, (code, printed) in enumerate(results):
                self.assertIsNotNone(code, f"{key}, rank {rank}: {printed}")
                fine = key in (variable_shape, all_options, options_of_a_replica)
                self.assertEqual(code == 0, fine, f"{key}, rank {rank}: {printed}")
        self.assertLess(self.took, 25.0)

    def test_refused_together(self):
        for rank, (_, printed) in enumerate(self.ended[without_loss]):
            self.assertIn("rank 2 has the last stage and needs a loss_fn", printed)
        for rank, (_, printed) in enumerate(self.ended[other_plan]):
            self.assertRegex(printed, "has another plan .* than rank")

    def test_shape_changes(self):
        self.assertIn("StepError: rank 0, SEND_F s0 m2 to=1 (instruction", self.ended[other_shape][0][1])
        self.assertIn("stage 0 gives float32[1, 8], its first micro-batch gave float32[2, 8]: pass "
                      "variable_shapes=True", self.ended[other_shape][0][1])

    def test_wrong_arguments_of_one_rank(self):
        for _, printed in self.ended[wrong_rows]:
            self.assertIn("ValueError: rank 0: the input has shape [11, 8], which does not chunk into 6 "
                          "micro-batches of the same size: leave the last batch out", printed)

    def test_killed(self):
        results = self.ended[kill, 1]
        self.assertEqual(results[1][0], -signal.SIGKILL)
        report = next(text for code, text in results if "no sign of life" in text)
        self.assertRegex(report, r"rank [02], \S+ s[02] m\d.* \(instruction \d+; stage [02], micro-batch \d\)")
        self.assertRegex(report, r"rank 1: no sign of life; last: ")
        self.assertEqual(report.count("no sign of life"), 1)

    def test_failed(self):
        code, printed = self.ended[fail, 1][1]
        self.assertRegex(printed, r"StepError: rank 1, F s1 m2 \(instruction \d+; stage 1, micro-batch 2\): "
                                  r"ArithmeticError: out of numbers")
        self.assertRegex(printed, r"\n  rank 0: .*waits for rank 1 \(RECV_B s0 m\d from=1\) at BW s0 m\d")
        self.assertRegex(printed, r"\n  rank 1: failed: is in F s1 m2")
        for victim in (0, 2):
            self.assertRegex(self.ended[fail, 1][victim][1], r"another rank failed(:| first,) rank 1 is in F s1 m2")

    def test_hanging(self):
        for rank in (0, 2):
            self.assertRegex(self.ended[hang, 1][rank][1], r"\n  rank 1: is in F s1 m2 \(instruction \d+ of \d+\)")
        self.assertIn("the step does not end by itself, so this process ends", self.ended[hang, 1][1][1])


class StoreThatEnds:
    """Store of a process that ends after `reads` reads."""

    def __init__(self, reads):
        self.values, self.reads = {}, reads

    def set(self, key, value):
        self.values[key] = value.encode()

    def add(self, key, number):
        if self.reads == 0:
            raise RuntimeError("Connection reset by peer")
        return number

    def get(self, key):
        if self.reads == 0:
            raise RuntimeError("Connection reset by peer")
        self.reads -= 1
        return self.values.get(key, b"7 waits for rank 1")


@unittest.mock.patch("contraflow.torch.watch.PERIOD", 0.01)
class ReportTest(unittest.TestCase):
    def test_survives_the_store(self):
        class Program:
            def place(self):
                return "waits for rank 1 (RECV_F s2 m0 from=1) at F s2 m0"
        program = Program()
        for reads, known in ((1, False), (3, True), (5, True)):
            watch = Watch(StoreThatEnds(reads), 2, 3, program.place)
            report = watch.fail("timed out")
            self.assertIn("the process that holds the store has ended", report)
            self.assertEqual("\n  rank 1: waits for rank 1" in report, known, report)
            self.assertEqual("not known" in report, not known)
        watch = Watch(StoreThatEnds(100), 2, 3, program.place)
        self.assertRegex(watch.fail("timed out"), "^  rank 0: no sign of life; last: waits.*\n.*\n  rank 2: failed: waits")


if __name__ == "__main__":
    unittest.main()
