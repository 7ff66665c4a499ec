"""contraflow.torch over NCCL, with four processes on one GPU. The gradients of three schedules are those of
one process on that GPU, messages of 64 MB pass whole, and a communicator's memory is measured. Plans of level
component run on streams, over NCCL with two processes and with ranks that are threads of one (LocalLinks): gradients
are those of level comm, and layers that take a known time show how much of the all-to-alls is hidden. Prints a line of
JSON for each figure. It needs torch and the program `contraflow`, but not the compiled Python module.

    python3 tests/python/torch_gpu.py build/release/tools/contraflow [--backend gloo] [--megabytes N] [--json FILE]

With gloo it runs on the CPU. Without a GPU it says SKIP and exits with 77. Every process claims to be a
machine of its own, since NCCL refuses two ranks on one GPU: times of messages mean nothing here.
"""

import argparse
import collections
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import types

_package = types.ModuleType("contraflow")  # without its compiled half
_package.__path__ = [str(pathlib.Path(__file__).parents[2] / "tools/python/contraflow")]
sys.modules["contraflow"] = _package

import torch_layers  # noqa: E402
from torch_model import (Block, Reference, batch, dist, expect_success, loss_fn, rows_of, run_processes,  # noqa: E402
                         torch)

from contraflow.torch import Links, PlanSchedule, run_local  # noqa: E402

RANKS, MICROBATCHES = 4, 8
SCHEDULES = ("1f1b", "zb-1p", "dualpipe")
COMPONENTS = ("1f1b", "zb-1p", "zb-v", "dualpipe")

Route = collections.namedtuple("Route", "ranks microbatches")


class Instruction(collections.namedtuple("Instruction", "text op stage microbatch back_stage back_microbatch "
                                                        "peer group layer lane after")):
    @classmethod
    def of(cls, text):
        found = re.fullmatch(r"(\w+) s(\d+)(?: l(\d+))?(?: m(\d+))?(?: \+ s(\d+) m(\d+))?(?: (?:to|from)=(\d+))?"
                             r"(?: group=(\d+))?(?: lane=(\w+))?(?: after=([\d,]+))?", text)
        stage, layer, *numbers = (n and int(n) for n in found.groups()[1:8])
        after = tuple(map(int, found[10].split(","))) if found[10] else ()
        return cls(text, found[1], stage, *numbers, layer, found[9], after)

    def __str__(self):
        return self.text


class Plan:
    """Reads of PlanSchedule from a plan's file."""

    def __init__(self, path):
        with open(path) as file:
            plan = json.load(file)
        self.schedule, self.level = plan["schedule"], plan["level"]
        self.ranks, self.stages, self.microbatches = plan["ranks"], plan["stages"], plan["microbatches"]
        self.data_parallel, self.expert_parallel = plan.get("data_parallel", 1), plan.get("expert_parallel", 1)
        self.layers, self.stage_layers = plan.get("layers"), []
        self.routes = [Route(**route) for route in plan["routes"]]
        self.programs = [tuple(map(Instruction.of, program)) for program in plan["programs"]]

    def verify(self):
        """The command that wrote the file did."""

    def stages_of(self, rank):
        return sorted({s for route in self.routes for s, at in enumerate(route.ranks) if at == rank})


_package.Plan = Plan  # agreement asks whether it was given one


class Scale(torch.nn.Module):
    """A stage that does next to nothing with a large activation."""

    def __init__(self, stage):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 4096) + 0.1 * stage)

    def forward(self, x):
        return x * self.weight


def say(figure, **values):
    print(json.dumps({"part": "torch-nccl", "figure": figure, **values}), flush=True)
    if "CONTRAFLOW_FIGURES" in os.environ:  # in the form of gpu_check.sh
        target = values.get("predicted")
        line = {"part": os.environ.get("part_name", "torch"),
                "figure": figure + "".join(f", {values[key]}" for key in ("schedule", "max_ctas") if key in values),
                "value": values["value"], "unit": values["unit"], "target": target,
                "ratio": target and round(values["value"] / target, 4)}
        with open(os.environ["CONTRAFLOW_FIGURES"], "a") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def difference(found, expected):
    """The largest, as a share of the largest gradient."""
    return max(((f - e).abs().max() / e.abs().max()).item() for f, e in zip(found, expected))


def check(rank, figure, plan, found, expected, began):
    worst = torch.tensor([difference(found, expected)], device=found[0].device)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    if rank == 0:
        say(figure, schedule=plan.schedule, ranks=plan.ranks, value=worst.item(), unit="of the largest",
            seconds=round(time.monotonic() - began, 1))
    assert worst.item() <= 1e-5, (figure, plan.schedule, worst.item())


def gradients(rank, device, plan):
    """Two steps, each as in one process."""
    began = time.monotonic()
    modules = {s: Block(s).to(device) for s in plan.stages_of(rank)}
    schedule = PlanSchedule(plan, modules, loss_fn, timeout=120)
    inputs, targets = (values.to(device) for values in batch(MICROBATCHES))
    x, y = rows_of(plan, rank, 0, inputs), rows_of(plan, rank, plan.stages - 1, targets)
    reference = Reference(plan.stages, MICROBATCHES, device=device)
    for _ in range(2):
        for module in modules.values():
            module.zero_grad(set_to_none=True)
        schedule.step(*() if x is None else (x,), target=y)
    found = [p.grad for module in modules.values() for p in module.parameters()]
    expected = [g / MICROBATCHES for s in modules for g in reference.sum(s, range(MICROBATCHES))]
    check(rank, "gradients", plan, found, expected, began)


def large_messages(rank, device, plan, megabytes):
    began = time.monotonic()
    modules = {s: Scale(s).to(device) for s in plan.stages_of(rank)}
    schedule = PlanSchedule(plan, modules, loss_fn, timeout=120)
    rows = megabytes * 2**20 // (4 * 4096)
    generator = torch.Generator().manual_seed(11)
    inputs = torch.randn(MICROBATCHES, rows, 4096, generator=generator)
    x, y = ((values.to(device) if values is not None else None)
            for values in (rows_of(plan, rank, s, inputs) for s in (0, plan.stages - 1)))
    schedule.step(*() if x is None else (x,), target=y)
    stages = [Scale(s).to(device) for s in range(plan.stages)]
    for part in inputs:
        part = part.to(device)
        (loss_fn(torch.nn.Sequential(*stages)(part), part) / MICROBATCHES).backward()
    found = [module.weight.grad for module in modules.values()]
    check(rank, f"messages of {megabytes} MB", plan, found, [stages[s].weight.grad for s in modules], began)


def communicator_bytes(rank, device, max_ctas):
    """Bytes at both ends of the communicators of all edges, for each of them."""
    def free():
        dist.barrier()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        dist.barrier()
        return torch.cuda.mem_get_info(device)[0]
    edges = [(r, r + 1) for r in range(RANKS - 1)] + [(r + 1, r) for r in range(RANKS - 1)]
    before = free()
    pairs = []
    for pair in edges:
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        options._timeout = datetime.timedelta(seconds=120)
        options.config.max_ctas = max_ctas
        group = dist.new_group(sorted(pair), timeout=options._timeout, pg_options=options)
        pairs.append((pair, group))
        if rank in pair:
            post = group.send if rank == pair[0] else group.recv
            post([torch.zeros(1, device=device)], int(rank == min(pair)), 0).wait()
    after = free()
    if rank == 0:
        say("memory of a communicator, both ends", max_ctas=max_ctas, value=(before - after) // len(edges),
            unit="bytes")


def steps(plan, links, device, **options):
    """Gradients after two steps of a plan whose stages have MoE layers; `plan` is of any level."""
    rank = links.rank if links is not None else dist.get_rank()
    stages = {s: [layer.to(device) for layer in torch_layers.layers_of(plan, s, None, None, 2)]
              for s in plan.stages_of(rank)}
    schedule = PlanSchedule(plan, stages, torch_layers.loss_fn, links=links, timeout=120, **options)
    inputs, targets = (values.to(device) for values in torch_layers.batch(plan.microbatches))
    x, y = rows_of(plan, rank, 0, inputs), rows_of(plan, rank, plan.stages - 1, targets)
    for _ in range(2):
        for layers in stages.values():
            for layer in layers:
                layer.zero_grad(set_to_none=True)
        schedule.step(*() if x is None else (x,), target=y)
    return [p.grad for layers in stages.values() for layer in layers for p in layer.parameters()]


def pairs_of(paths):
    """(plan of level component, the same of level comm)."""
    plans = [Plan(path) for path in paths]
    for component, whole in zip(plans[::2], plans[1::2]):
        whole.layers = component.layers
        yield component, whole


def components(rank, backend, paths):
    device = torch.device("cuda", 0) if backend == "nccl" else torch.device("cpu")
    dist.barrier()
    for component, whole in pairs_of(paths):
        began = time.monotonic()
        check(rank, "gradients of components against level comm", component, steps(component, None, device),
              steps(whole, None, device), began)


class Spend(torch.autograd.Function):
    """Takes `forward` and `backward` ms of one multiprocessor, or none."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.backward_ms = backward
        spend(x, forward)
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        spend(g, ctx.backward_ms)
        return g.clone(), None, None


def spend(x, ms):
    if x.is_cuda:
        torch.cuda._sleep(int(ms * cycles_of_ms(x.device)))
    else:
        time.sleep(ms / 1e3)


_cycles = []


def cycles_of_ms(device):
    if not _cycles:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(2):  # the first one is slow
            begin.record()
            torch.cuda._sleep(10_000_000)
            end.record()
            torch.cuda.synchronize(device)
        _cycles.append(10_000_000 / begin.elapsed_time(end))
    return _cycles[0]


class Timed(torch.nn.Module):
    """An MoE layer each part of which takes the same time: F, B and W."""

    def __init__(self, ms):
        super().__init__()
        self.ms = ms
        self.a, self.e = (torch.nn.Parameter(torch.ones(torch_layers.WIDTH)) for _ in range(2))

    def _product(self, x, weight):
        return Spend.apply(x, self.ms, self.ms) * Spend.apply(weight, 0, self.ms)

    def attention(self, x):
        return self._product(x, self.a), x

    def dispatch(self, tokens):
        return Spend.apply(tokens, self.ms, self.ms)

    def experts(self, rows):
        return self._product(rows, self.e)

    def combine(self, rows, x):
        return x + Spend.apply(rows, self.ms, self.ms)


def hidden(trace):
    """The share of the time of all-to-alls in which the compute of their rank is busy, and the makespan in ms."""
    total = covered = 0.0
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    for rank in {e["pid"] for e in slices}:
        mine = [(e["cat"], e["ts"], e["ts"] + e["dur"]) for e in slices if e["pid"] == rank]
        compute = [(begin, end) for category, begin, end in mine if category == "component"]
        for category, begin, end in mine:
            if category == "all-to-all":
                total += end - begin
                covered += sum(max(0.0, min(end, e) - max(begin, b)) for b, e in compute)
    return covered / total, (max(e["ts"] + e["dur"] for e in slices) - min(e["ts"] for e in slices)) / 1e3


def local_ranks(_, backend, paths, predicted):
    """With ranks that are threads of this process."""
    device = torch.device("cuda", 0) if backend == "nccl" else torch.device("cpu")
    unit = 2.0 if backend == "nccl" else 10.0  # ms
    if backend == "nccl":
        cycles_of_ms(device)
    for component, whole in pairs_of(paths):
        began = time.monotonic()
        found, expected = (run_local(plan.ranks, lambda links, plan=plan: steps(plan, links, device), device=device)
                           for plan in (component, whole))
        worst = max(difference(*both) for both in zip(found, expected))
        say("gradients of components against level comm, LocalLinks", schedule=component.schedule, value=worst,
            unit="of the largest", seconds=round(time.monotonic() - began, 1))
        assert worst <= 1e-5, (component.schedule, worst)

        def timed(links, plan=component):
            stages = {s: [Timed(unit).to(device) for _ in range(plan.layers)] for s in plan.stages_of(links.rank)}
            schedule = PlanSchedule(plan, stages, torch_layers.loss_fn, links=links, timeout=120, timing_every=1)
            values = torch.ones(plan.microbatches, torch_layers.ROWS, torch_layers.WIDTH, device=device)
            x, y = (rows_of(plan, links.rank, s, values) for s in (0, plan.stages - 1))
            for _ in range(3):
                schedule.step(*() if x is None else (x,), target=y)
            schedule.trace(f"{path}/trace.json")
        with tempfile.TemporaryDirectory() as path:
            run_local(component.ranks, timed, device=device)
            with open(f"{path}/trace.json") as file:
                share, makespan = hidden(json.load(file))
        of_plan, units = predicted[component.schedule]
        say("all-to-alls hidden", schedule=component.schedule, value=round(share, 3), predicted=round(of_plan, 3),
            unit="of their time")
        say("step, over its prediction", schedule=component.schedule, value=round(makespan / (units * unit), 3), unit="")
        assert share > 0.5 * of_plan, (component.schedule, share, of_plan)


def work(rank, backend, megabytes, paths):
    device = torch.device("cuda", 0) if backend == "nccl" else torch.device("cpu")
    plans = [Plan(path) for path in paths]
    dist.barrier()  # the first communicator is that of all
    if backend == "nccl":
        for max_ctas in (2, 32):
            communicator_bytes(rank, device, max_ctas)
        before = torch.cuda.mem_get_info(device)[0]
        edges = sorted({(r, i.peer) for r, program in enumerate(plans[0].programs) for i in program
                        if i.op.startswith("SEND")})
        Links(edges, set())
        dist.barrier()
        if rank == 0:
            say("memory of an edge of Links, both ends", unit="bytes",
                value=(before - torch.cuda.mem_get_info(device)[0]) // len(edges))
        dist.barrier()
    for plan in plans:
        gradients(rank, device, plan)
    for plan in plans:
        large_messages(rank, device, plan, megabytes)


def has_gpu():
    """Asked in a process of its own: this one forks, and a fork cannot use CUDA that its parent began."""
    ask = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", ask], check=False).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("contraflow", help="the program, which makes the plans")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--megabytes", type=int, default=64, help="of a large message")
    parser.add_argument("--json", help="a file that gets a line for each figure, as tools/gpu_check.sh has them")
    arguments = parser.parse_args()
    if arguments.json:
        os.environ["CONTRAFLOW_FIGURES"] = arguments.json
    if arguments.backend == "nccl" and not (dist.is_nccl_available() and has_gpu()):
        print("SKIP: there is no GPU, or this torch has no NCCL")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/{name}.json" for name in SCHEDULES]
        for name, path in zip(SCHEDULES, paths):
            subprocess.run([arguments.contraflow, "compile", "--schedule", name, "--ranks", str(RANKS),
                            "--microbatches", str(MICROBATCHES), "-o", path], check=True)
        expect_success(run_processes(RANKS, work, arguments.backend, arguments.megabytes, paths, limit=400.0,
                                     backend=arguments.backend))
        paths, predicted = [], {}
        for name in COMPONENTS:
            for level in ("component", "comm"):
                paths.append(f"{folder}/{name}-{level}.json")
                subprocess.run([arguments.contraflow, "compile", "--schedule", name, "--ranks", "2", "--microbatches",
                                "4", "--costs", "moe-unit", "--level", level, "-o", paths[-1]], check=True)
            subprocess.run([arguments.contraflow, "simulate", paths[-2], "--trace", f"{folder}/trace.json"], check=True,
                           stdout=subprocess.DEVNULL)
            with open(f"{folder}/trace.json") as file:
                predicted[name] = hidden(json.load(file))
        expect_success(run_processes(2, components, arguments.backend, paths, limit=200.0, backend=arguments.backend))
        expect_success(run_processes(1, local_ranks, arguments.backend, paths, predicted, limit=200.0,
                                     backend=arguments.backend))
    print(f"{len(SCHEDULES)} schedules over {arguments.backend}, torch {torch.__version__}: as one process")


if __name__ == "__main__":
    main()
