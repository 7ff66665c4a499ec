"""B and W beside BW, of blocks that are eager, compiled, checkpointed and made of functions of their own: one rank, zb-1p
and 1f1b in turn, the least milliseconds of each instruction. Then steps and schedules made and dropped, and what grows.
Needs torch 2.15 and a machine with little else to do.

    PYTHONPATH=build/release/tools/python python3 tests/python/backward_times.py
"""

import gc
import json
import os
import tempfile
import warnings

from torch_model import expect_success, loss_fn, run_processes, torch

import contraflow as cf
from contraflow.torch import PlanSchedule

WIDTH, ROWS, MICROBATCHES, BLOCKS, STEPS = 512, 256, 4, 4, 12


class Product(torch.autograd.Function):
    """x @ weight.t(), with both gradients at once."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g @ weight, g.t() @ x


class Block(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.norm, self.kind = torch.nn.LayerNorm(WIDTH), kind
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)

    def body(self, x):
        h = self.norm(x)
        if self.kind == "function":
            return x + Product.apply(torch.relu(Product.apply(h, self.up.weight)), self.down.weight)
        return x + self.down(torch.relu(self.up(h)))

    def forward(self, x):
        if self.kind == "checkpoint":
            return torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=False)
        return self.body(x)


def stage(kind):
    torch.manual_seed(1)
    blocks = [Block(kind) for _ in range(BLOCKS)]
    return torch.nn.Sequential(*(map(torch.compile, blocks) if kind == "compiled" else blocks))


def least_times(plans, kind, path):
    """Milliseconds of each instruction, by the name of its plan."""
    x, target = torch.randn(MICROBATCHES * ROWS, WIDTH), torch.zeros(MICROBATCHES * ROWS, WIDTH)
    schedules = {name: PlanSchedule(plan, {0: stage(kind)}, loss_fn) for name, plan in plans.items()}
    least = {name: {} for name in plans}
    for _ in range(STEPS):
        for name, schedule in schedules.items():
            schedule.step(x, target=target)
            schedule.trace(path)
            took = {}
            for e in json.load(open(path))["traceEvents"]:
                if e["ph"] == "X":
                    took[e["name"]] = took.get(e["name"], 0) + e["dur"] / 1000 / MICROBATCHES
            least[name] = {op: min(t, least[name].get(op, t)) for op, t in took.items()}
    return least


def held():
    gc.collect()
    kib = int(open("/proc/self/statm").read().split()[1]) * 4
    return (f"{len(gc.get_objects())} objects, {kib / 1024:.1f} MiB, {len(os.listdir('/proc/self/fd'))} descriptors, "
            f"{len(os.listdir('/proc/self/task'))} threads")


def work(_, said):
    warnings.simplefilter("ignore")
    plans = {name: cf.compile(name, ranks=1, microbatches=MICROBATCHES) for name in ("zb-1p", "1f1b")}
    lines = [f"torch {torch.__version__}, ms of an instruction",
             f"{'':12}{'F':>8}{'BW':>8}{'B':>8}{'W':>8}  (B + W) / BW   B / BW"]
    for kind in ("eager", "compiled", "checkpoint", "function"):
        least = least_times(plans, kind, said)
        f, both, b, w = least["1f1b"]["F"], least["1f1b"]["BW"], least["zb-1p"]["B"], least["zb-1p"]["W"]
        lines.append(f"{kind:12}{f:8.2f}{both:8.2f}{b:8.2f}{w:8.2f}{(b + w) / both:14.3f}{b / both:9.3f}")

    x, target = torch.randn(2 * MICROBATCHES, WIDTH), torch.zeros(2 * MICROBATCHES, WIDTH)

    def made():
        schedule = PlanSchedule(plans["zb-1p"], {0: torch.nn.Linear(WIDTH, WIDTH)}, loss_fn)
        schedule.step(x, target=target)
        return schedule

    schedule = made()
    for _ in range(200):
        schedule.step(x, target=target)
    lines.append(f"at first:          {held()}")
    for _ in range(2000):
        schedule.step(x, target=target)
    lines.append(f"after 2,000 steps: {held()}")
    for _ in range(100):
        made()
    lines.append(f"100 schedules:     {held()}")
    with open(said, "w") as file:
        file.write("\n".join(lines))


if __name__ == "__main__":
    with tempfile.NamedTemporaryFile() as said:
        expect_success(run_processes(1, work, said.name, limit=600))
        print(open(said.name).read())
