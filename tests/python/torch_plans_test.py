"""Plans of all kinds over gloo, against the same training in one process: losses and gradients, bit for
bit where every stage has one copy. `--full` runs the whole matrix of shapes and 200 random plans
(minutes)."""

import argparse
import json
import random
import sys

from torch_model import (Block, Reference, batch, dist, expect_success, loss_fn, rows_of,
                         run_processes, torch, weight_order)

import contraflow as cf
import contraflow.torch as cft
from contraflow.torch import program

_references = {}


def reference(*key):
    if key not in _references:
        _references[key] = Reference(*key)
    return _references[key]


class CountedBlock(Block):
    """Hands the number of the stage on beside the activation."""

    def __init__(self, number, last):
        super().__init__(number)
        self.number, self.last = number, last

    def forward(self, x, count):
        assert count.dtype == torch.int64 and (count == self.number).all()
        y = super().forward(x)
        return y if self.number == self.last else (y, count + 1)


def run_plan(plan, links, replica=0, steps=2, counted=False, **options):
    """Trains with the plan and compares with one process. Returns the largest difference."""
    rank = links.rank
    last = plan.stages - 1
    stages = {s: CountedBlock(s, last) if counted else Block(s) for s in plan.stages_of(rank)}
    if rank > 0:  # not the first holder of any stage that has two
        for s, module in stages.items():
            if min(r for r in range(plan.ranks) if s in plan.stages_of(r)) != rank:
                torch.nn.init.zeros_(module.up.weight)
    overlapped = []

    class Counts(cft.Overlap):
        def forward_backward(self, forward, backward):
            overlapped.append(forward.stage)
            return super().forward_backward(forward, backward)
    schedule = cft.PlanSchedule(plan, stages, loss_fn, links=links, overlap=Counts(), **options)
    schedule.sync_parameters()
    inputs, targets = batch(plan.microbatches, replica)
    for _ in range(steps):
        losses, of_eval = [], []
        for module in stages.values():
            module.zero_grad(set_to_none=True)
        x, target = rows_of(plan, rank, 0, inputs), rows_of(plan, rank, last, targets)
        given = [x]
        if counted and x is not None:
            given.append(torch.zeros(len(x), dtype=torch.int64))
        schedule.step(*given, target=target, losses=losses)
        schedule.eval(*given, target=target, losses=of_eval)
    expected = reference(plan.stages, plan.microbatches, replica)
    mine = sorted(m for route in plan.routes if route.ranks[last] == rank for m in route.microbatches)
    assert len(losses) == len(of_eval) == len(mine)
    for m, loss, again in zip(mine, losses, of_eval):
        assert torch.equal(loss, expected.losses[m]), (plan.schedule, rank, m, loss)
        assert torch.equal(again, expected.losses[m]), (plan.schedule, rank, m, again)
    pairs = [i.stage for i in plan.programs[rank] if i.op == "FB"
             and not any(k.op == "R" and (k.stage, k.microbatch) == (i.stage, i.microbatch)
                         for k in plan.programs[rank])]
    assert overlapped == steps * pairs, (overlapped, pairs)
    replicas = len(links.replicas)
    worst = 0.0
    for s, module in stages.items():
        holders = [r for r in range(plan.ranks) if s in plan.stages_of(r)]
        total = None
        for other in range(replicas):
            for holder in holders:
                part = reference(plan.stages, plan.microbatches, other if replicas > 1 else replica).sum(
                    s, weight_order(plan, holder, s), weight_order(plan, holder, s, "B"))
                total = part if total is None else [a + b for a, b in zip(total, part)]
        for p, g in zip(module.parameters(), total):
            difference = (p.grad - g.div_(plan.microbatches * replicas)).abs().max().item()
            assert difference <= (0.0 if len(holders) * replicas == 1 else 1e-6), (
                plan.schedule, plan.ranks, plan.microbatches, rank, s, difference)
            worst = max(worst, difference)
    return worst


def all_links(ranks, plans, **groups):
    return cft.Links({edge for plan in plans for edge in program.edges(plan)},
                     {tuple(h) for plan in plans for h in program.holders(plan)}, **groups)


def work(rank, ranks, replicas, plans):
    groups = {}
    replica = rank // ranks
    if replicas > 1:
        for d in range(replicas):
            members = dist.new_group(list(range(d * ranks, (d + 1) * ranks)))
            if d == replica:
                groups["group"] = members
        for r in range(ranks):
            members = dist.new_group([d * ranks + r for d in range(replicas)])
            if rank % ranks == r:
                groups["data_parallel"] = members
    plans = [cf.Plan.from_json(text) for text in plans]
    links = all_links(ranks, plans, **groups)
    options = {"data_parallel": groups["data_parallel"]} if replicas > 1 else {}
    for number, plan in enumerate(plans):
        try:
            run_plan(plan, links, replica, counted=number % 3 == 0, **options)
        except BaseException:
            print(f"{plan.schedule}, {plan.ranks} ranks, {plan.microbatches} micro-batches",
                  file=sys.stderr)
            raise


def plans_of(ranks, microbatches):
    """Plans that compile for a shape: (name, options)."""
    asked = [(name, {}) for name in ("gpipe", "1f1b", "zb-1p", "zb-2p", "zb-v", "v-half", "v-min",
                                     "chimera", "dualpipe", "dualpipe-v")]
    asked += [("interleaved-1f1b", {"chunks": chunks}) for chunks in (2, 3)]
    asked += [("auto", {"placement": placement, "budget": "20ms"})
              for placement in ("linear", "v", "interleaved", "bidirectional")]
    asked += [("1f1b", {"recompute": "full"}), ("auto", {"placement": "v", "recompute": "0",
                                                         "budget": "20ms"}),
              ("dualpipe", {"recompute": "1"})]
    for name, options in asked:
        try:
            yield cf.compile(name, ranks=ranks, microbatches=microbatches, **options)
        except cf.Error:  # no such plan for this shape
            pass


def sound(text):
    try:
        cf.Plan.from_json(text).verify()
    except cf.Error:
        return False
    return True


def shuffled(plan, chance):
    """A plan whose instructions went astray in small steps, each of which left it sound, with some
    neighbouring messages posted together."""
    document = json.loads(plan.to_json())
    for _ in range(40):
        program = chance.choice(document["programs"])
        if len(program) < 2:
            continue
        before = list(program)
        at = chance.randrange(len(program) - 1)
        if chance.random() < 0.3 and all("SEND_" in i or "RECV_" in i for i in program[at:at + 2]):
            group = f" group={at}"
            program[at:at + 2] = [i.split(" group=")[0] + group for i in program[at:at + 2]]
        else:
            program.insert(min(at + chance.randrange(1, 4), len(program) - 1), program.pop(at))
        if not sound(json.dumps(document)):
            program[:] = before
    return cf.Plan.from_json(json.dumps(document))


def random_plan(ranks, seed):
    chance = random.Random(seed)
    costs = {key: chance.randint(1, 9) for key in ("f", "b", "w")}
    costs["comm"] = chance.choice((0, 0.1, 1, 3))
    name = chance.choice(("1f1b", "interleaved-1f1b", "zb-1p", "zb-v", "dualpipe-v", "auto", "auto", "auto",
                          "auto"))
    options = {}
    if name == "auto":
        options = {"placement": chance.choice(("linear", "v", "interleaved", "bidirectional")),
                   "budget": "5ms", "seed": seed, "noise": chance.choice((0, 0.2))}
    try:
        plan = cf.compile(name, ranks=ranks, microbatches=chance.randint(1, 10), **costs, **options)
    except cf.Error:  # no such plan for this shape
        return random_plan(ranks, seed + 1000)
    return shuffled(plan, chance)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--full", action="store_true")
    full = arguments.parse_args().full
    shapes = [(4, 1, [8])]
    if full:
        shapes = [(2, 1, [1, 2, 4, 7]), (3, 1, [3, 8]), (4, 1, [3, 8, 12]), (8, 1, [8, 16, 20]),
                  (2, 2, [4]), (4, 2, [8]), (8, 2, [16])]
    for ranks, replicas, counts in shapes:
        plans = [plan.to_json() for m in counts for plan in plans_of(ranks, m)]
        expect_success(run_processes(ranks * replicas, work, ranks, replicas, plans))
        print(f"{len(plans)} plans on {ranks} ranks x {replicas}: as one process")
    for ranks, count in ((2, 50), (3, 50), (4, 70), (8, 30)) if full else ((3, 6),):
        plans = [random_plan(ranks, seed).to_json() for seed in range(count)]
        expect_success(run_processes(ranks, work, ranks, 1, plans))
        grouped = sum("group=" in text for text in plans)
        print(f"{count} random plans on {ranks} ranks, {grouped} with groups: as one process")


if __name__ == "__main__":
    main()
