"""Component plans measured beside `simulate`, over gloo: parts of a MoE layer that take as long as the costs say, with
real all-to-alls between the processes of an expert group. Prints the step and the share of all-to-alls that compute hides,
predicted and measured; the gain of `auto` over 1F1B with costs made of a profile of 1F1B; and the time of a component
that does nothing. All-to-alls sleep, and so does compute, which multiplies matrices with `--multiply`. Exits with 1 where
a figure is off by more than the limits. Needs a machine with little else to do.

    PYTHONPATH=build/release/tools/python python3 tests/python/component_times.py
"""

import argparse
import json
import pathlib
import sys
import tempfile
import time

from torch_layers import Exchange, TimedInput, TimedWeight, batch
from torch_model import WIDTH, dist, expect_success, rows_of, run_processes, torch

import contraflow as cf
import contraflow.torch as cft

# Milliseconds of the parts of a layer.
PARTS = {"attn_f": 60, "attn_b": 72, "attn_w": 30, "mlp_f": 54, "mlp_b": 54, "mlp_w": 48, "dispatch_f": 36,
         "combine_f": 54, "dispatch_b": 54, "combine_b": 36}
LAYERS = 2  # of a stage


def sleep(milliseconds):
    time.sleep(milliseconds / 1000)


def multiply(milliseconds):
    for _ in range(round(milliseconds * MULTIPLICATIONS)):
        torch.mm(MATRIX, MATRIX, out=PRODUCT)


MATRIX, PRODUCT, MULTIPLICATIONS = torch.full((256, 256), 1 / 256), torch.empty(256, 256), 0.0


def calibrate():
    """Sets how many multiplications take a millisecond of an idle machine."""
    global MULTIPLICATIONS
    torch.set_num_threads(1)
    MULTIPLICATIONS = 1.0
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        multiply(20)
        best = min(best, time.perf_counter() - begin)
    MULTIPLICATIONS *= 0.020 / best


class Timed(torch.nn.Module):
    """A MoE layer with parts of `PARTS` milliseconds; `spend` None: of none. Its all-to-alls are real."""

    def __init__(self, spend, group):
        super().__init__()
        self.spend, self.group = spend, group
        self.a, self.e = (torch.nn.Parameter(torch.ones(WIDTH)) for _ in range(2))

    def compute(self, x, weight, part):
        if not x.requires_grad and torch.is_grad_enabled():
            x = x.detach().requires_grad_()  # the first stage, too, has an input gradient to make
        f, b, w = (PARTS[f"{part}_{key}"] for key in "fbw")
        return TimedInput.apply(x, self.spend, f, b) * TimedWeight.apply(weight, self.spend, w)

    def exchange(self, x, part):
        wait = self.spend and sleep  # a network takes no processor
        return TimedInput.apply(Exchange.apply(x, self.group), wait, PARTS[f"{part}_f"], PARTS[f"{part}_b"])

    def attention(self, x):
        h = self.compute(x, self.a, "attn")
        return h, h

    def dispatch(self, tokens):
        return self.exchange(tokens, "dispatch")

    def experts(self, rows):
        return self.compute(rows, self.e, "mlp")

    def combine(self, rows, h):
        return h + self.exchange(rows, "combine")


def train(me, text, experts, spend, steps, folder, profiled):
    """Steps of a plan. Each process writes when they began and ended; the first of each expert writes a trace."""
    plan = cf.Plan.from_json(text)
    rank, expert = divmod(me, experts)
    pipelines = [dist.new_group([r * experts + e for r in range(plan.ranks)]) for e in range(experts)]
    groups = [dist.new_group([r * experts + e for e in range(experts)]) for r in range(plan.ranks)]
    group = groups[rank] if experts > 1 else None
    schedule = cft.PlanSchedule(plan, {s: [Timed(spend, group) for _ in range(plan.layers)]
                                       for s in plan.stages_of(rank)},
                                torch.nn.functional.mse_loss, pipelines[expert])
    inputs, targets = batch(plan.microbatches, expert)
    x, target = rows_of(plan, rank, 0, inputs), rows_of(plan, rank, plan.stages - 1, targets)
    arguments = [] if x is None else [x]
    spans = []

    def step():
        dist.barrier()
        begin, busy = time.monotonic(), time.process_time()
        schedule.step(*arguments, target=target)
        spans.append((begin, time.monotonic(), time.process_time() - busy))

    for _ in range(steps):
        step()
        schedule.trace(f"{folder}/trace{expert}.{len(spans) - 1}.json")
    if profiled:
        config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU],
                                    experimental_config=config) as profile:
            for _ in range(3):
                step()
        if expert == 0:
            profile.export_chrome_trace(f"{folder}/profile{rank}.json")
    with open(f"{folder}/spans{me}.json", "w") as file:
        json.dump(spans[1:steps], file)


def hidden(path):
    """The share of the time of all-to-alls in which compute of the same rank runs, of a trace."""
    events = [e for e in json.loads(pathlib.Path(path).read_text())["traceEvents"] if e["ph"] == "X"]
    total = covered = 0.0
    for rank in {e["pid"] for e in events}:
        compute = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["pid"] == rank and e["cat"] == "component"]
        for e in events:
            if e["pid"] == rank and e["cat"] == "all-to-all":
                total += e["dur"]
                covered += sum(max(0.0, min(end, e["ts"] + e["dur"]) - max(begin, e["ts"])) for begin, end in compute)
    return covered / total


def measure(plan, experts, spend, steps, profiled=None):
    """(milliseconds of the shortest step after the first, share of its all-to-alls that is hidden, its processor
    seconds)."""
    with tempfile.TemporaryDirectory() as folder:
        expect_success(run_processes(plan.ranks * experts, train, plan.to_json(), experts, spend, steps,
                                     profiled or folder, profiled is not None, limit=300))
        folder = pathlib.Path(profiled or folder)
        spans = zip(*[json.loads((folder / f"spans{me}.json").read_text()) for me in range(plan.ranks * experts)])
        took = [(max(end for _, end, _ in each) - min(begin for begin, _, _ in each), at, sum(b for _, _, b in each))
                for at, each in enumerate(spans, 1)]
        best, at, busy = min(took)
        return best * 1000, hidden(folder / f"trace0.{at}.json"), busy


def predicted(plan):
    """(makespan, share of all-to-alls that is hidden), as `simulate` has them."""
    simulation = plan.simulate()
    return plan.makespan, 1 - simulation.exposed.sum() / simulation.all_to_all.sum()


def costs_of(overlap):
    return {"unit": "ms", "comm": {"time": 1}, "moe": {"layers_per_stage": LAYERS, **PARTS}, "overlap": overlap}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--experts", type=int, default=2, help="processes of an expert group")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--multiply", action="store_true", help="compute multiplies matrices, it does not sleep")
    parser.add_argument("--limit", type=float, default=0.03, help="how far a step may be off")
    parser.add_argument("--points", type=float, default=3, help="how far a share or a gain may be off, in points")
    given = parser.parse_args()
    if given.multiply:
        calibrate()
    spend, failed = multiply if given.multiply else sleep, False
    shape = {"ranks": given.ranks, "microbatches": given.microbatches, "level": "component"}

    def compare(title, plan, took, share):
        nonlocal failed
        should, of_plan = predicted(plan)
        failed |= abs(took / should - 1) > given.limit or abs(share - of_plan) * 100 > given.points
        print(f"{title:24} {should:8.1f} {took:8.1f} {took / should - 1:+7.1%}    {of_plan:7.1%} {share:7.1%} "
              f"{(share - of_plan) * 100:+5.1f}", flush=True)

    print(f"torch {torch.__version__}, {given.ranks} x {given.experts} processes, {given.microbatches} micro-batches")
    print(f"{'':24} {'step, ms':>25}    {'hidden':>21}\n{'plan':24} {'simulate':>8} {'took':>8} {'off':>7}    "
          f"{'simulate':>8} {'took':>6} {'off':>5}")
    for name, overlap in (("1f1b", "published"), ("zb-1p", "all"), ("zb-v", "all"), ("dualpipe", "published"),
                          ("dualpipe", "all"), ("auto", "all")):
        plan = cf.compile(name, costs=costs_of(overlap), **shape)
        took, share, _ = measure(plan, given.experts, spend, given.steps)
        compare(f"{name}, {overlap}", plan, took, share)

    with tempfile.TemporaryDirectory() as folder:
        first = cf.compile("1f1b", costs=costs_of("all"), **shape)
        before, *_ = measure(first, given.experts, spend, given.steps, profiled=folder)
        costs = cf.Costs.from_profile([f"{folder}/profile{rank}.json" for rank in range(given.ranks)], plan=first)
    second = cf.compile("auto", costs=costs, **shape)
    after, *_ = measure(second, given.experts, spend, given.steps)
    gain = 1 - second.makespan / cf.compile("1f1b", costs=costs, **shape).makespan
    got = 1 - after / before
    failed |= abs(got - gain) * 100 > given.points
    print(f"auto for 1f1b, with costs of a profile of it: step {gain:.1%} shorter predicted, {got:.1%} measured")

    print("with parts that do nothing:")
    for name in ("1f1b", "dualpipe"):
        plan = cf.compile(name, costs=costs_of("all"), **shape)
        parts = sum(i.lane not in ("send", "recv") for program in plan.programs for i in program) / plan.ranks
        took, _, busy = measure(plan, given.experts, None, 4 * given.steps)
        processes = given.ranks * given.experts
        print(f"  {name}: {took * 1000 / parts:.0f} us for each component of a rank, "
              f"{busy * 1e6 / parts / processes:.0f} us of processor time")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
