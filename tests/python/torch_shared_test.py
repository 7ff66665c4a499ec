"""A parameter that several stages of a rank share: its gradient is that of one process, on one rank and
where both stages have two holders. All ranks refuse a parameter that they cannot sum."""

import unittest
import warnings

from torch_model import WIDTH, Block, Processes, batch, dist, loss_fn, rows_of, torch

import contraflow as cf
from contraflow.torch import PlanSchedule


def tied(stages, last):
    """Blocks for these stages; the first and the last share the weight of `up`."""
    blocks = {s: Block(s) for s in stages}
    if 0 in blocks and last in blocks:
        blocks[last].up.weight = blocks[0].up.weight
    return blocks


def step(plan, stages, rank, **options):
    schedule = PlanSchedule(plan, stages, loss_fn, **options)
    inputs, targets = batch(plan.microbatches)
    x, y = rows_of(plan, rank, 0, inputs), rows_of(plan, rank, plan.stages - 1, targets)
    schedule.step(*() if x is None else (x,), target=y)


def as_one_process(plan, stages):
    expected = tied(range(plan.stages), plan.stages - 1)
    for x, y in zip(*batch(plan.microbatches)):
        for module in expected.values():
            x = module(x)
        (loss_fn(x, y) / plan.microbatches).backward()
    for s, module in stages.items():
        for (name, p), q in zip(module.named_parameters(), expected[s].parameters()):
            assert torch.allclose(p.grad, q.grad, rtol=1e-4, atol=1e-6), (plan.schedule, s, name)


def on_one_rank(rank):
    for name, options in (("interleaved-1f1b", {"chunks": 2}), ("zb-v", {})):
        plan = cf.compile(name, ranks=1, microbatches=3, **options)
        stages = tied(plan.stages_of(rank), plan.stages - 1)
        step(plan, stages, rank)
        as_one_process(plan, stages)


def on_both_holders(rank):
    for name in ("dualpipe", "zb-v"):
        plan = cf.compile(name, ranks=2, microbatches=4)
        stages = tied(plan.stages_of(rank), plan.stages - 1)
        step(plan, stages, rank)
        as_one_process(plan, stages)


def on_one_holder(rank):
    plan = cf.compile("dualpipe", ranks=2, microbatches=4)
    step(plan, tied(plan.stages_of(rank), 1 if rank == 0 else -1), rank)


def with_on_step(rank):
    plan = cf.compile("zb-v", ranks=2, microbatches=4)
    step(plan, tied(plan.stages_of(rank), plan.stages - 1), rank, on_step=print)


def other_weights(rank, data_parallel=False):
    """Blocks of a seed of each process, which nobody has made alike."""
    plan = cf.compile("1f1b" if data_parallel else "dualpipe", ranks=1 if data_parallel else 2, microbatches=4)
    stages = {s: Block(s, seed=rank) for s in plan.stages_of(0 if data_parallel else rank)}
    options = {}
    if data_parallel:
        alone = [dist.new_group([0]), dist.new_group([1])]
        options = {"group": alone[rank], "data_parallel": dist.group.WORLD}
    schedule = PlanSchedule(plan, stages, loss_fn, **options)
    schedule.step(torch.ones(4, WIDTH), target=torch.zeros(4, WIDTH))


def other_replica(rank):
    other_weights(rank, data_parallel=True)


def rows_of_both_ends(rank):
    """Each end gets the whole batch, and a warning; later steps and their own halves give none."""
    plan = cf.compile("dualpipe", ranks=2, microbatches=4)
    for whole in (True, False):
        schedule = PlanSchedule(plan, {s: Block(s) for s in plan.stages_of(rank)}, loss_fn)
        both = tuple(values.flatten(0, 1) for values in batch(plan.microbatches))
        x, y = both if whole else schedule.rows(both)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(2):
                schedule.step(x, target=y)
        found = [None, None]
        dist.all_gather_object(found, [str(w.message) for w in seen if "same rows" in str(w.message)])
        texts = [text for texts in found for text in texts]
        assert len(texts) == int(whole), (whole, texts)
        assert all("give step() what schedule.rows(batch) returns" in text for text in texts), texts


class SharedTest(unittest.TestCase):
    def test_all(self):
        running = {work: Processes(1 if work is on_one_rank else 2, work)
                   for work in (on_one_rank, on_both_holders, on_one_holder, with_on_step, rows_of_both_ends)}
        refusal = {on_one_holder: r"hold stages \[0, 1\] and must share the same parameters",
                   with_on_step: "stages 3 and 0 of rank 0 share a parameter.*leave out grad_reduce and "
                                 "on_step"}
        for work, processes in running.items():
            for code, printed in processes.results(60.0):
                with self.subTest(work.__name__):
                    self.assertEqual(code, 1 if work in refusal else 0, printed)
                    if work in refusal:
                        self.assertRegex(printed, refusal[work])

    def test_weights_of_holders_and_replicas(self):
        running = {work: Processes(2, work) for work in (other_weights, other_replica)}
        for work, processes in running.items():
            with self.subTest(work.__name__):
                results = processes.results(60.0)
                self.assertIn(1, [code for code, _ in results])
                self.assertRegex("".join(printed for _, printed in results),
                                 r"stage 0 has other parameters on \w+ [01].* than on .*[01].*sync_parameters\(\)")


if __name__ == "__main__":
    unittest.main()
