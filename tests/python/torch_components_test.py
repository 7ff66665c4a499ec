"""Plans of level component over gloo, with experts over several processes and random delays on every lane:
gradients of the same plan at level comm bit for bit, and of one process to 1e-6. A dependency that is taken away by
hand is found. `--full` runs all schedules, shapes and recomputes, 200 random plans and 500 delayed runs
(minutes)."""

import argparse
import random
import sys
import time

from torch_layers import batch, layers_of, loss_fn, reference
from torch_model import dist, expect_success, rows_of, run_processes, torch

import contraflow as cf
import contraflow.torch as cft
from contraflow.torch import program

PARTS = {"attn_f": 10, "attn_b": 12, "attn_w": 5, "mlp_f": 9, "mlp_b": 9, "mlp_w": 8, "dispatch_f": 6, "combine_f": 9,
         "dispatch_b": 9, "combine_b": 6}
VALUES = {"input": 1, "attention": 4, "scores": 2, "gate": 3, "hidden": 3, "rows": 2, "combined": 2}
PLAIN = {"f": 1, "b": 1, "w": 1, "activation_bytes": 1, "w_stash_bytes": 1}


def costs_of(kinds, comm=2, overlap=None):
    """Costs of a model of layers, a letter for each; or of stages of `kinds` MoE layers."""
    if isinstance(kinds, int):
        return {"unit": "ms", "comm": {"time": comm}, "moe": {"layers_per_stage": kinds, **PARTS},
                "overlap": overlap or "all"}
    dense = {"dense": {k: v for k, v in PARTS.items() if k.startswith(("attn", "mlp"))}, "activation_bytes": 13,
             "w_stash_bytes": 9, "values": {k: v for k, v in VALUES.items() if k not in ("rows", "combined")}}
    moe = {"moe": PARTS, "activation_bytes": 17, "w_stash_bytes": 9, "values": VALUES}
    layers = [{"name": f"layer {at}", **{"m": moe, "d": dense, "p": PLAIN}[kind]} for at, kind in enumerate(kinds)]
    return {"unit": "ms", "comm": {"latency": comm, "bytes": 4, "bandwidth": "100GB/s"}, "layers": layers}


def pair(name, ranks, microbatches, kinds, overlap=None, **options):
    """The same plan at both levels, as JSON; None where there is none for the shape. `auto` may take other stages
    or routes at level comm: there the plan is compared with itself, without delays."""
    if name == "auto":
        options = {"budget": "5ms", **options}
    try:
        component = cf.compile(name, ranks=ranks, microbatches=microbatches, costs=costs_of(kinds, overlap=overlap),
                               level="component", **options)
        options.pop("recompute", None)
        whole = cf.compile(name, ranks=ranks, microbatches=microbatches, costs=costs_of(kinds, overlap=overlap),
                           **options)
    except cf.Error:
        return None
    return component.to_json(), (whole if routes(whole) == routes(component) else component).to_json()


def routes(plan):
    return [(route.ranks, route.microbatches) for route in plan.routes]


def random_pair(ranks, seed):
    chance = random.Random(seed)
    name = chance.choice(("1f1b", "interleaved-1f1b", "zb-1p", "zb-v", "v-half", "dualpipe", "dualpipe-v", "auto",
                          "auto"))
    options = {"placement": chance.choice(("linear", "v", "interleaved", "bidirectional"))} if name == "auto" else {}
    kinds = chance.choice((1, 2, "".join(chance.choice("mmdp") for _ in range(2 * ranks + chance.randint(1, 5)))))
    if isinstance(kinds, str) and chance.random() < 0.5 and name != "auto":
        options["recompute"] = chance.choice(("attention", "experts", "all-but-attention", "full", "layers=1"))
    count = chance.choice((2 * ranks, 2 * ranks + 2, 3)) if name != "dualpipe" else 2 * ranks
    return pair(name, ranks, count, kinds, **options) or random_pair(ranks, seed + 1000)


def weight_orders(plan, rank):
    """The micro-batches of each stage in the order in which their weight gradients are added."""
    orders = {}
    for i in plan.programs[rank]:
        back = program.back_cell(i, program.WEIGHT)
        if back is not None and (i.layer in (None, 0)) and i.op != "MLP_W":
            orders.setdefault(back[0], []).append(back[1])
    return orders


def delayed(schedule, chance, most=0.002):
    """Delays operations of every lane at random."""
    def late(waiting, work):
        def both():
            if chance.random() < 0.3:
                time.sleep(chance.random() * most)
            work()
        return waiting, both
    walk = schedule._walk
    walk.operations = [late(*operation) for operation in walk.operations]


def trained(plan, of_layers, links, expert, group, experts, seed=None, steps=1, **options):
    """Losses and gradients of a plan, whose stages have the layers of `of_layers`."""
    rank = links.rank
    stages = {s: layers_of(of_layers, s, expert, group, experts, **options) for s in plan.stages_of(rank)}
    schedule = cft.PlanSchedule(plan, stages, loss_fn, links=links)
    if seed is not None and schedule._walk.lanes is not None:
        delayed(schedule, random.Random(seed))
    inputs, targets = batch(plan.microbatches, expert)
    x, target = rows_of(plan, rank, 0, inputs), rows_of(plan, rank, plan.stages - 1, targets)
    arguments, losses, of_eval = [] if x is None else [x], [], []
    for _ in range(steps):
        schedule.step(*arguments, target=target, losses=losses)
    schedule.eval(*arguments, target=target, losses=of_eval)
    assert len(losses) == len(of_eval) and all(map(torch.equal, losses, of_eval))
    assert not schedule._walk._held and not any(layer.islands for layers in schedule._walk._layers.values()
                                                for layer in layers)
    return losses, {(s, k, name): p.grad for s, layers in stages.items() for k, layer in enumerate(layers)
                    for name, p in layer.named_parameters()}


def work(me, ranks, experts, pairs, seeds, options):
    torch.set_num_threads(1)
    rank, expert = divmod(me, experts)
    pipelines = [dist.new_group([r * experts + e for r in range(ranks)]) for e in range(experts)]
    groups = [dist.new_group([r * experts + e for e in range(experts)]) for r in range(ranks)]
    plans = [tuple(map(cf.Plan.from_json, texts)) for texts in pairs]
    every = [plan for both in plans for plan in both]
    links = cft.Links({edge for plan in every for edge in program.edges(plan)},
                      {tuple(h) for plan in every for h in program.holders(plan)}, pipelines[expert])
    group = groups[rank] if experts > 1 else None
    for component, whole in plans:
        place = f"{component.schedule}, {ranks} x {experts}, {component.microbatches} micro-batches, {seeds}"
        losses, grads = trained(whole, component, links, expert, group, experts, **options)
        same = all(weight_orders(component, r) == weight_orders(whole, r) for r in range(ranks))
        expected, model = reference(component, experts, component.microbatches)
        kinds = component.stage_layers or ["m" * component.layers] * component.stages
        for seed in seeds:
            again, parts = trained(component, component, links, expert, group, experts, seed + me, **options)
            for loss, other in zip(losses, again):
                assert torch.equal(loss, other), (place, loss, other)
            for (s, layer, name), grad in parts.items():
                close = torch.equal(grad, grads[s, layer, name]) if same else torch.allclose(
                    grad, grads[s, layer, name], rtol=1e-5, atol=1e-7)
                assert close, (place, s, layer, name, grad - grads[s, layer, name])
        ends = sorted(m for route in component.routes if route.ranks[-1] == rank for m in route.microbatches)
        for m, loss in zip(ends, losses):
            right = expected[expert, m]
            assert abs(loss.item() - right) < 1e-6 * max(1.0, right), (place, loss, right)
        for (s, layer, name), grad in parts.items():
            of = model[sum(map(len, kinds[:s])) + layer]
            if name.startswith("e.") and experts > 1:  # an expert has the rows of all devices
                right = dict(of.named_parameters())[name.replace("e.0", f"e.{expert}")].grad
            elif experts == 1:
                right = dict(of.named_parameters())[name].grad
            else:  # the sum over the devices
                dist.all_reduce(grad, group=group)
                right = dict(of.named_parameters())[name].grad
            assert (grad - right).abs().max() <= 1e-6 * max(1.0, right.abs().max()), (place, s, layer, name)


def check(ranks, experts, pairs, seeds=(0,), **options):
    pairs = [both for both in pairs if both is not None]
    expect_success(run_processes(ranks * experts, work, ranks, experts, pairs, seeds, options, limit=1200))
    print(f"{len(pairs)} plans on {ranks} ranks x {experts} experts, {len(seeds)} runs each: as at level comm",
          flush=True)


def without_one(text, seed, runs=20):
    """Takes one dependency between lanes away and returns the run that shows it, or None."""
    plan = cf.Plan.from_json(text)
    inputs, targets = batch(plan.microbatches)
    links = cft.Links(set(), {(0,)})

    def gradients(change):
        stages = {s: layers_of(plan, s, None, None, 2) for s in range(plan.stages)}
        schedule = cft.PlanSchedule(plan, stages, loss_fn, links=links)
        change(schedule)
        schedule.step(inputs.flatten(0, 1), target=targets.flatten(0, 1))
        return [p.grad for layers in stages.values() for layer in layers for p in layer.parameters()]

    right = gradients(lambda schedule: None)
    removed = random.Random(seed)

    def remove(schedule):
        lanes = schedule._walk.lanes
        at = removed_at.setdefault("at", removed.choice([k for k, others in enumerate(lanes.awaited) if others]))
        lanes.awaited[at] = []
        delayed(schedule, random.Random(run), 0.01)

    removed_at = {}
    for run in range(runs):
        try:
            if not all(map(torch.equal, right, gradients(remove))):
                return run
        except cft.StepError:
            return run
    return None


def find_removed(_, text, count):
    runs = [without_one(text, seed) for seed in range(count)]
    assert all(run is not None for run in runs), runs
    print(f"{count} dependencies taken away, found after at most {max(runs) + 1} runs")


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--full", action="store_true")
    full = arguments.parse_args().full
    every = ("gpipe", "1f1b", "interleaved-1f1b", "zb-1p", "zb-2p", "zb-v", "v-half", "v-min", "chimera", "dualpipe",
             "dualpipe-v", "combined-1f1b")
    placements = ("linear", "v", "interleaved", "bidirectional")
    mixed = "pddmmmmp"
    if not full:
        check(2, 2, [pair("dualpipe", 2, 4, 2), pair("zb-1p", 2, 3, mixed, recompute="all-but-attention"),
                     pair("zb-v", 2, 3, mixed), pair("auto", 2, 4, 1, placement="linear")])
        check(2, 1, [pair("dualpipe", 2, 4, mixed, recompute="full"), *[random_pair(2, seed) for seed in range(4)]])
        check(2, 2, [pair("dualpipe", 2, 4, 1)], explicit=True)
    else:
        for ranks, experts in ((2, 2), (4, 1), (2, 4)):
            count = 2 * ranks
            check(ranks, experts, [pair(name, ranks, count, 2, overlap) for name in every
                                   for overlap in ("published", "all")])
            check(ranks, experts, [pair("auto", ranks, count, 2, overlap, placement=placement)
                                   for placement in placements for overlap in ("published", "all")])
            check(ranks, experts, [pair(name, ranks, count, mixed, recompute=parts) for name in every
                                   for parts in ("attention", "experts", "all-but-attention", "full")])
            check(ranks, experts, [pair(name, ranks, count, 1) for name in every], explicit=True)
        for ranks, number in ((1, 40), (2, 80), (3, 50), (4, 30)):
            check(ranks, 1, [random_pair(ranks, seed) for seed in range(number)])
        check(2, 2, [pair(name, 2, 4, mixed) for name in ("zb-1p", "dualpipe", "zb-v", "1f1b", "v-half")], range(100))
    text = pair("zb-v", 1, 4, 2)[0]
    expect_success(run_processes(1, find_removed, text, 10 if full else 4))


if __name__ == "__main__":
    main()
