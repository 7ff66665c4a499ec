"""A rank that is killed, fails or hangs: every process ends soon, and says who did what."""

import os
import re
import signal
import time
import unittest

from torch_model import (Block, Processes, batch, loss_fn, rows_of, torch)

import contraflow as cf
import contraflow.torch as cft

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
                       for what in (without_loss, other_plan, other_shape, wrong_rows, variable_shape))
        cls.ended = {key: processes.results(30.0) for key, processes in running.items()}
        cls.took = time.monotonic() - begin

    def test_everything_ends(self):
        for key, results in self.ended.items():
            for rank, (code, printed) in enumerate(results):
                self.assertIsNotNone(code, f"{key}, rank {rank}: {printed}")
                self.assertEqual(code == 0, key is variable_shape, f"{key}, rank {rank}: {printed}")
        self.assertLess(self.took, 25.0)

    def test_refused_together(self):
        for rank, (_, printed) in enumerate(self.ended[without_loss]):
            self.assertIn("rank 2 has the last stage and needs a loss_fn", printed)
        for rank, (_, printed) in enumerate(self.ended[other_plan]):
            self.assertRegex(printed, "has another plan than rank")

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

    def test_hanging(self):
        printed = "".join(text for _, text in self.ended[hang, 1])
        self.assertRegex(printed, r"\n  rank 1: is in F s1 m2 \(instruction \d+ of \d+\)")
        self.assertIn("the step does not end by itself, so this process ends", self.ended[hang, 1][1][1])


if __name__ == "__main__":
    unittest.main()
