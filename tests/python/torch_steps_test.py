"""Steps of several processes: rows on ranks without input, gradients that add up, groups that are given back,
and the order in which they are connected."""

import gc
import os
import re
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock

from torch_model import Block, Processes, batch, dist, loss_fn, rows_of, torch

import contraflow as cf
from contraflow.torch import Links, PlanSchedule, links, watch

RANKS, MICROBATCHES = 3, 6


class Counts(Block):
    """Adds a column of the batch that each stage gets, and a table that is no part of it."""

    def forward(self, x, column, inside):
        assert inside["table"].shape == (2 * MICROBATCHES + 6, 8), inside["table"].shape
        return super().forward(x) + column.view(-1, 1) + inside["table"][0]


def arguments(plan, rank, rows):
    x = torch.linspace(0, 1, rows * 8).view(rows, 8)
    first = (x,) if rank == 0 else ()
    target = {"target": {"y": 2 * x, "of all": torch.ones(5)}} if rank == plan.ranks - 1 else {}
    return first, target, {"column": torch.linspace(0, 1, rows),
                           "inside": {"table": torch.ones(2 * MICROBATCHES + 6, 8)}}


def rows_on_all_ranks(rank):
    """The same as one process on every rank, also where the number of rows changes."""
    def loss(output, target):
        assert len(target["of all"]) == 5
        return loss_fn(output, target["y"])
    plan = cf.compile("1f1b", ranks=RANKS, microbatches=MICROBATCHES)
    for changes, all_rows in ((False, (12, 12)), (True, (12, 13, 7, 12, 6, 14, 12, 12))):
        module = Counts(rank)
        schedule = PlanSchedule(plan, {rank: module}, loss, variable_shapes=changes)
        for at, rows in enumerate(all_rows):
            first, target, kwargs = arguments(plan, rank, rows)
            if not changes and at == 0 and rank == 1:
                schedule.step(**{"column": kwargs["column"], "inside": kwargs["inside"]})
            else:
                schedule.step(*first, **target, **kwargs)
            module.zero_grad(set_to_none=True)
        schedule.step(*arguments(plan, rank, 12)[0], **arguments(plan, rank, 12)[1], **arguments(plan, rank, 12)[2])
        stages = [Counts(s) for s in range(RANKS)]
        (x,), _, kwargs = arguments(plan, 0, 12)
        for part, column in zip(x.chunk(MICROBATCHES), kwargs["column"].chunk(MICROBATCHES)):
            y = part
            for stage in stages:
                y = stage(y, column, kwargs["inside"])
            (loss_fn(y, 2 * part) / MICROBATCHES).backward()
        for p, q in zip(module.parameters(), stages[rank].parameters()):
            assert torch.allclose(p.grad, q.grad, rtol=1e-5, atol=1e-6)


def steps_add_up(rank):
    """Both holders of a stage sum, and replicas do."""
    plan = cf.compile("dualpipe", ranks=2, microbatches=4)
    modules = {s: Block(s) for s in plan.stages_of(rank)}
    schedule = PlanSchedule(plan, modules, loss_fn)
    inputs, targets = batch(plan.microbatches)
    for times in (1, 2):
        schedule.step(rows_of(plan, rank, 0, inputs), target=rows_of(plan, rank, 1, targets))
        if times == 1:
            once = {p: p.grad.clone() for module in modules.values() for p in module.parameters()}
    for p, g in once.items():
        assert torch.allclose(p.grad, 2 * g, rtol=1e-5, atol=1e-7)


class Partly(Block):
    """Has one parameter that nothing uses, and one that this process alone uses."""

    def __init__(self, seed, used):
        super().__init__(seed)
        self.used, self.idle, self.mine = used, torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(8))

    def forward(self, x):
        return super().forward(x) * (self.mine if self.used else 1)


def unused_have_no_gradient(rank):
    """Holds as in one process if several ranks hold them, too."""
    plan = cf.compile("dualpipe", ranks=2, microbatches=4)
    modules = {s: Partly(s, rank == 0) for s in plan.stages_of(rank)}
    schedule = PlanSchedule(plan, modules, loss_fn)
    inputs, targets = batch(plan.microbatches)
    for _ in range(2):
        schedule.step(rows_of(plan, rank, 0, inputs), target=rows_of(plan, rank, 1, targets))
        for module in modules.values():
            assert module.idle.grad is None and module.mine.grad.abs().sum() > 0


def refuses(call, error, text):
    try:
        call()
    except error as said:
        assert re.search(text, str(said)), said
    else:
        raise AssertionError(text)


def refused(rank):
    """Arguments that cannot be, on all ranks alike."""
    plan = cf.compile("dualpipe", ranks=2, microbatches=4)
    modules = {s: Block(s) for s in plan.stages_of(rank)}

    def made(plan=plan, stages=modules, loss=loss_fn, *more, **options):
        return PlanSchedule(plan, stages, loss, *more, **options)
    other = cf.compile("dualpipe", ranks=2, microbatches=4 + 4 * rank)
    for error, text, make in (
            (TypeError, "plan must be a contraflow.Plan, .* is a NoneType", lambda: made(None)),
            (TypeError, "stages .* has the key 'x'", lambda: made(plan, {"x": modules[0]})),
            (TypeError, "loss_fn .* is a str", lambda: made(plan, modules, "mse")),
            (TypeError, "stage 0, layer 0 must be a torch.nn.Module", lambda: made(plan, {0: [print], 1: [print]})),
            (TypeError, "a group must be a torch.distributed.ProcessGroup.*, is a str", lambda: made(group="x")),
            (ValueError, "timeout must be a number of seconds above 0, is '5'", lambda: made(timeout="5")),
            (ValueError, "timeout must be a number of seconds above 0, is -1", lambda: made(timeout=-1)),
            (ValueError, "dualpipe, . micro-batches. than rank .* give all ranks the same", lambda: made(other))):
        refuses(make, error, text)
    schedule = made(variable_shapes=True)
    inputs, targets = batch(plan.microbatches)
    for error, text, call in (
            (RuntimeError, "no loss before the first step", schedule.loss),
            (TypeError, "losses must be a list, .* is a int", lambda: schedule.eval(inputs, losses=3)),
            (TypeError, "a state must be a dict", lambda: schedule.load_state_dict(None)),
            (ValueError, "max_norm must be at least 0", lambda: schedule.clip_grad_norm_(-1.0)),
            (ValueError, "norm_type above 0", lambda: schedule.clip_grad_norm_(1.0, 0)),
            (ValueError, "two routes", lambda: schedule.rows((torch.ones(9, 8), torch.ones(9, 8))))):
        refuses(call, error, text)
    schedule.eval(rows_of(plan, rank, 0, inputs))
    assert schedule.loss().isnan()
    schedule.eval(rows_of(plan, rank, 0, inputs), target=rows_of(plan, rank, 1, targets))
    assert not schedule.loss().isnan()


def groups_are_given_back(rank):
    def descriptors():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))
    plan = cf.compile("dualpipe", ranks=2, microbatches=4)
    modules = {s: Block(s) for s in plan.stages_of(rank)}
    shared = Links({(0, 1), (1, 0)}, {(0, 1)})
    inputs, targets = batch(plan.microbatches)
    counts = []
    for options in ({}, {}, {"close": True}, {"links": shared}, {}):
        close = options.pop("close", False)
        schedule = PlanSchedule(plan, modules, loss_fn, **options)
        schedule.step(rows_of(plan, rank, 0, inputs), target=rows_of(plan, rank, 1, targets))
        if close:
            schedule.close()
            counts.append(descriptors())
        del schedule
        counts.append(descriptors())
        dist.barrier()
    assert max(counts) <= min(counts) + 2, counts
    end = time.monotonic() + watch.PERIOD / 2  # those who watch end with their schedules
    while any("_watch" in thread.name for thread in threading.enumerate()):
        assert time.monotonic() < end, threading.enumerate()
        time.sleep(0.01)
    shared.close()
    assert descriptors() < min(counts), counts


def one_order(rank):
    """All ranks connect in the order of the pairs, both ends of each before the next."""
    order, groups = [], {}
    new_group = dist.new_group

    class Spied:
        def __init__(self, ranks):
            self.ranks, self.group = tuple(ranks), new_group(ranks)

        def send(self, tensors, peer, tag):
            order.append((rank, self.ranks[peer]))
            return self.group.send(tensors, peer, tag)

        def recv(self, tensors, peer, tag):
            order.append((self.ranks[peer], rank))
            return self.group.recv(tensors, peer, tag)

        def allreduce(self, tensors):
            order.append(self.ranks)
            return self.group.allreduce(tensors)

    def spied(ranks, timeout, pg_options=None):
        return groups.setdefault((*ranks, len(groups)), Spied(ranks))
    edges = {(0, 1), (1, 0), (1, 2), (2, 1), (2, 0), (0, 2)}
    with unittest.mock.patch("torch.distributed.new_group", spied):
        made = Links(edges, {(0, 2), (1,)})
    assert order == sorted(e for e in edges if rank in e) + ([(0, 2)] if rank != 1 else []), order
    made._give_back.detach()


SLOW_STORE = """
import sys, threading, time
from contraflow.torch.watch import Watch
class Store:
    def set(self, key, value): pass
    def add(self, key, value):
        asked.set()
        time.sleep(0.3)
        print("answered", flush=True)
        return 0
class Place:
    def place(self): return "here"
asked, place = threading.Event(), Place()
watch = Watch(Store(), 0, 1, place.place)
watch.begin()
asked.wait()
"""


class StepsTest(unittest.TestCase):
    def test_exit_waits_for_the_store(self):
        printed = subprocess.run([sys.executable, "-c", SLOW_STORE], capture_output=True, text=True, timeout=60)
        self.assertEqual((printed.returncode, printed.stdout, printed.stderr), (0, "answered\n", ""))

    def test_all(self):
        running = {work: Processes(world, work) for work, world in (
            (rows_on_all_ranks, 3), (steps_add_up, 2), (unused_have_no_gradient, 2), (refused, 2), (groups_are_given_back, 2), (one_order, 3))}
        for work, processes in running.items():
            for code, printed in processes.results():
                with self.subTest(work.__name__):
                    self.assertEqual(code, 0, printed)

    @unittest.skipUnless(hasattr(dist, "ProcessGroupNCCL"), "this torch has no NCCL")
    def test_edges_take_two_multiprocessors(self):
        with unittest.mock.patch("contraflow.torch.links._uses_nccl", lambda: True):
            options = links._options(links.datetime.timedelta(seconds=7))
        self.assertTrue(options.is_high_priority_stream)
        self.assertEqual((options.config.max_ctas, options._timeout.seconds), (2, 7))


if __name__ == "__main__":
    unittest.main()
