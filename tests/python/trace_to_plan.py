"""From a trace to a better plan: trains with 1F1B on stages that sleep for as long as they are told,
profiles it with torch.profiler, makes costs of the traces with `contraflow profile`, searches a plan for
these, and trains again. Prints what was slept, profiled, predicted and measured; exits with 1 where a
figure is off by more than the limit. Needs a machine with little else to do.

    PYTHONPATH=build/release/tools/python python3 tests/python/trace_to_plan.py
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from torch_layers import TimedInput, TimedWeight
from torch_model import WIDTH, expect_success, run_processes

import torch
import torch.distributed as dist

import contraflow as cf
import contraflow.torch as cft


class Slept(torch.nn.Module):
    """A stage that takes f, b and w seconds."""

    def __init__(self, f, b, w):
        super().__init__()
        self.weight, self.times = torch.nn.Parameter(torch.ones(WIDTH)), (f, b, w)

    def forward(self, x):
        f, b, w = self.times
        if not x.requires_grad and torch.is_grad_enabled():
            x = x.detach().requires_grad_()  # the first stage, too, has an input gradient to make
        return TimedInput.apply(x, time.sleep, f, b) * TimedWeight.apply(self.weight, time.sleep, w)


def slept_times(stages, seconds):
    """(f, b, w) of each stage of a model with a heavy last stage, which a model's head makes of it."""
    return [tuple(seconds * x * (1.5 if s == stages - 1 else 1) for x in (1, 1.1, 1.1))
            for s in range(stages)]


def loss_fn(output, target):
    return torch.nn.functional.mse_loss(output, target)


def train(rank, text, times, steps, folder, traced):
    """Steps of a plan, a line of JSON for each: when it began and ended."""
    plan = cf.Plan.from_json(text)
    modules = {s: Slept(*times[s]) for s in plan.stages_of(rank)}
    schedule = cft.PlanSchedule(plan, modules, loss_fn)
    x = torch.randn(2 * plan.microbatches, WIDTH)

    def rows(stage):
        held = sorted(m for route in plan.routes if route.ranks[stage] == rank for m in route.microbatches)
        return x.view(plan.microbatches, 2, WIDTH)[held].flatten(0, 1)

    first = (rows(0),) if 0 in modules else ()
    last = {"target": rows(plan.stages - 1)} if plan.stages - 1 in modules else {}

    def step():
        dist.barrier()
        begin = time.monotonic()
        schedule.step(*first, **last)
        return begin, time.monotonic()

    step()
    spans = [step() for _ in range(steps)]
    with open(f"{folder}/spans{rank}.json", "w") as file:
        json.dump(spans, file)
    if traced:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(3):
                step()
        profile.export_chrome_trace(f"{folder}/trace{rank}.json")


def measure(plan, times, steps, folder, traced=False):
    """The shortest makespan of some steps, in seconds: what else the machine does makes it longer."""
    expect_success(run_processes(plan.ranks, train, plan.to_json(), times, steps, folder, traced, limit=300))
    ranks = [json.load(open(f"{folder}/spans{rank}.json")) for rank in range(plan.ranks)]
    return min(max(end for _, end in spans) - min(begin for begin, _ in spans)
               for spans in zip(*ranks))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=0.04, help="slept in a forward")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--placement", default="linear", help="of the plan that is searched")
    parser.add_argument("--limit", type=float, default=0.1, help="how far a figure may be off")
    parser.add_argument("--tool", default=pathlib.Path(cf.__file__).parents[2] / "contraflow")
    given = parser.parse_args()

    times = slept_times(given.ranks, given.seconds)
    with tempfile.TemporaryDirectory() as folder:
        first = cf.compile("1f1b", ranks=given.ranks, microbatches=given.microbatches)
        first_took = measure(first, times, given.steps, folder, traced=True)
        first.save(f"{folder}/first.json")
        command = [given.tool, "profile", *(f"{folder}/trace{rank}.json" for rank in range(given.ranks)),
                   "--plan", f"{folder}/first.json", "-o", f"{folder}/costs.json"]
        print(subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout)
        costs = json.load(open(f"{folder}/costs.json"))
        # The same plan and the searched one, with the costs that were profiled.
        before = cf.compile("1f1b", ranks=given.ranks, microbatches=given.microbatches,
                            costs=f"{folder}/costs.json")
        after = cf.compile("auto", ranks=given.ranks, microbatches=given.microbatches,
                           costs=f"{folder}/costs.json", placement=given.placement)
        after_took = measure(after, times, given.steps, folder)

    failed = False

    def compare(what, is_, should, unit="ms"):
        nonlocal failed
        off = is_ / should - 1
        failed |= abs(off) > given.limit
        print(f"{what:34} {is_:9.2f} {unit:2} against {should:9.2f}, {off:+.1%}")

    for s, (f, b, w) in enumerate(times):
        compare(f"stage {s}, profiled f and slept", costs["stages"][s]["f"] / 1000, f * 1000)
        compare(f"stage {s}, profiled bw and slept", costs["stages"][s]["bw"] / 1000, (b + w) * 1000)
    compare("1f1b, measured and predicted", first_took * 1000, before.makespan / 1000)
    compare("auto, measured and predicted", after_took * 1000, after.makespan / 1000)
    compare("gain, measured and predicted", first_took / after_took, before.makespan / after.makespan, "x")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
