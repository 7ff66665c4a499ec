#!/usr/bin/env python3
"""Plans exported to PyTorch, in PyTorch's own pipeline runtime.

load: every schedule in many shapes is exported in both forms (compute, compute_comms), loaded into a
_PipelineScheduleRuntime, lowered there under several options and simulated by PyTorch's simulator.

train: plans are exported in both forms and run by that runtime, a process a rank over gloo. Every
gradient must be bitwise that of one process which adds up the micro-batches in the order of the file.

Needs the release of torch that --torch names, or a later one. Prints a line for each failure, then
the counts; exits with 1 where anything failed.
"""

import argparse
import csv
import json
import os
import socket
import subprocess
import sys
import tempfile
import types
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as pp
from torch.utils.checkpoint import checkpoint

FORMATS = {"compute": "compute_only", "compute_comms": "compute_comms"}
WIDTH, SAMPLES = 8, 2


@dataclass(frozen=True)
class Case:
    schedule: str
    ranks: int
    microbatches: int
    options: tuple = ()

    def __str__(self):
        return " ".join([self.schedule, f"{self.ranks} x {self.microbatches}", *self.options])


def compile_plan(binary, case, path):
    """False where the schedule does not take the shape."""
    command = [binary, "compile", "--schedule", case.schedule, "--ranks", str(case.ranks),
               "--microbatches", str(case.microbatches), "--f", "3", "--b", "4", "--w", "2",
               "--comm", "0.5", *case.options, "-o", str(path)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)}\n{result.stderr}")
    return result.returncode == 0


def export(binary, plan, form, release):
    """The path of the file, and the stages that the export says must be checkpointed."""
    path = plan.with_suffix(f".{form}.csv")
    command = [binary, "export", str(plan), "--to", "torch-csv", "--form", form,
               "--torch", release, "-o", str(path)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(result.stderr)
    stages = set()
    for line in result.stderr.splitlines():
        _, found, rest = line.partition("checkpoint stage")
        if found:
            stages = {int(s) for s in rest.split(":")[0].lstrip("s ").split(",")}
    return path, stages


def read_rows(path):
    with open(path, newline="") as file:
        return [[pp._Action.from_str(cell) for cell in row] for row in csv.reader(file)]


def parts(action):
    return action.sub_actions or (action,)


# load


def shapes(binary):
    names = [row["name"] for row in json.loads(
        subprocess.run([binary, "list", "--json"], check=True, capture_output=True).stdout)["schedules"]]
    for ranks in (1, 2, 3, 4, 8, 16):
        for microbatches in (1, 3, 8, 40):
            for name in names:
                if name == "auto":
                    if ranks * microbatches > 200:
                        continue
                    for placement in ("linear", "v", "interleaved"):
                        yield Case(name, ranks, microbatches,
                                   ("--budget", "10ms", "--placement", placement))
                elif name in ("interleaved-1f1b", "combined-1f1b"):
                    for chunks in ("2", "3"):
                        yield Case(name, ranks, microbatches, ("--chunks", chunks))
                else:
                    yield Case(name, ranks, microbatches)


def simulate(order, owner, stages):
    """PyTorch's simulator knows neither pairs nor what is for FSDP."""
    flat = {rank: [part for action in row if action is not None for part in parts(action)
                   if part.computation_type not in (pp.UNSHARD, pp.RESHARD, pp.REDUCE_GRAD,
                                                    pp.WAIT_REDUCE_GRAD)]
            for rank, row in order.items()}
    pp._simulate_comms_compute(flat, lambda stage: owner[stage], stages)


def load(path, form, stages, ranks, microbatches, options):
    stage = types.SimpleNamespace(num_stages=stages, group_size=ranks, group_rank=0, submod=None,
                                  stage_index=0)
    runtime = pp._PipelineScheduleRuntime([stage], microbatches, loss_fn=lambda *_: None, **options)
    runtime._load_csv(str(path), format=FORMATS[form])
    simulate(runtime.pipeline_order_with_comms, runtime.stage_index_to_group_rank, stages)


def check_loads(binary, release, folder):
    lowerings = [{}, {"max_active_stages": 2}, {"defer_reduce_grad_wait": True},
                 {"unshard_lookahead": "auto"}, {"max_outstanding_sends": 2}]
    plans = loads = failures = 0
    for case in shapes(binary):
        plan = folder / "plan.json"
        if not compile_plan(binary, case, plan):
            continue
        if len(json.loads(plan.read_text())["routes"]) > 1:
            continue
        plans += 1
        for form in FORMATS:
            # The budget of sends takes PyTorch long on large plans.
            small = case.ranks * case.microbatches <= 64
            options = lowerings if form == "compute" else [{}]
            for option in options[: None if small else 4]:
                try:
                    path, _ = export(binary, plan, form, release)
                    rows = read_rows(path)
                    stages = 1 + max(part.stage_index for row in rows for cell in row if cell
                                     for part in parts(cell))
                    load(path, form, stages, case.ranks, case.microbatches, option)
                    loads += 1
                except Exception as error:  # whatever PyTorch thinks of it
                    failures += 1
                    print(f"FAIL load {case}, {form}, {option}: {error}", flush=True)
    return plans, loads, failures


# train


def training_cases():
    cases = []
    for ranks in (2, 3, 4):
        microbatches = 2 * ranks + 2
        for name in ("gpipe", "1f1b", "zb-1p", "zb-2p", "zb-v", "v-half", "v-min", "dualpipe-v"):
            cases.append(Case(name, ranks, microbatches))
        for name, chunks in (("interleaved-1f1b", "2"), ("interleaved-1f1b", "3"),
                             ("combined-1f1b", "2")):
            cases.append(Case(name, ranks, 2 * ranks, ("--chunks", chunks)))
        for placement in ("linear", "v", "interleaved"):
            cases.append(Case("auto", ranks, microbatches,
                              ("--budget", "20ms", "--placement", placement)))
    cases += [Case("1f1b", 4, 8, ("--recompute", "full")), Case("1f1b", 3, 7, ("--recompute", "0,1")),
              Case("zb-1p", 4, 8, ("--recompute", "1,2")), Case("zb-v", 2, 6, ("--recompute", "full")),
              Case("dualpipe-v", 2, 8, ("--recompute", "0,3"))]
    return cases


class Block(torch.nn.Module):
    def __init__(self, stage, recompute):
        super().__init__()
        torch.manual_seed(stage)
        self.first = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.second = torch.nn.Linear(2 * WIDTH, WIDTH)
        self.recompute = recompute

    def compute(self, x):
        return x + self.second(torch.tanh(self.first(x)))

    def forward(self, x):
        if self.recompute:
            return checkpoint(self.compute, x, use_reentrant=False)
        return self.compute(x)


def data(microbatches):
    generator = torch.Generator().manual_seed(99)
    shape = (microbatches * SAMPLES, WIDTH)
    return (torch.randn(shape, generator=generator), torch.randn(shape, generator=generator))


def loss_of(output, target):
    return torch.nn.functional.mse_loss(output, target)


def reference(stages, microbatches, order, checkpointed):
    """Gradients of every stage in one process; `order` has the micro-batches as each adds them."""
    blocks = [Block(stage, stage in checkpointed) for stage in range(stages)]
    x, target = data(microbatches)
    parameters = [list(block.parameters()) for block in blocks]
    flat = [parameter for block in parameters for parameter in block]
    gradients = []
    for value, wanted in zip(x.chunk(microbatches), target.chunk(microbatches)):
        for block in blocks:
            value = block(value)
        gradients.append(torch.autograd.grad(loss_of(value, wanted), flat))
    result, at = [], 0
    for stage, block in enumerate(parameters):
        sums = None
        for microbatch in order[stage]:
            mine = gradients[microbatch][at : at + len(block)]
            sums = [g.clone() for g in mine] if sums is None else [s + g for s, g in zip(sums, mine)]
        result.append([s / microbatches for s in sums])
        at += len(block)
    return result


def weight_order(rows, stages):
    order = [[] for _ in range(stages)]
    for row in rows:
        for cell in row:
            for part in parts(cell) if cell else ():
                if part.computation_type in (pp.FULL_BACKWARD, pp.BACKWARD_WEIGHT):
                    order[part.stage_index].append(part.microbatch_index)
    return order


def train(rank, group, job):
    """One step; the largest difference of a gradient of this rank's stages, 0 where bitwise equal."""
    rows = read_rows(job["path"])
    owner = {part.stage_index: r for r, row in enumerate(rows) for cell in row if cell
             for part in parts(cell)}
    stages, microbatches = len(owner), job["microbatches"]
    example = torch.zeros(SAMPLES, WIDTH, requires_grad=True)
    mine = [s for s in range(stages) if owner[s] == rank]
    blocks = {s: Block(s, s in job["checkpointed"]) for s in mine}
    local = [PipelineStage(blocks[s], s, stages, torch.device("cpu"), output_args=example, group=group,
                           input_args=example if s > 0 else example.detach()) for s in mine]
    runtime = pp._PipelineScheduleRuntime(local, microbatches, loss_fn=loss_of)
    runtime._load_csv(job["path"], format=FORMATS[job["form"]])
    x, target = data(microbatches)
    runtime.step(*((x,) if owner[0] == rank else ()),
                 **({"target": target} if owner[stages - 1] == rank else {}))
    wanted = reference(stages, microbatches, weight_order(rows, stages), job["checkpointed"])
    worst = 0.0
    for stage in mine:
        for parameter, gradient in zip(blocks[stage].parameters(), wanted[stage]):
            if not torch.equal(parameter.grad, gradient):
                worst = max(worst, (parameter.grad - gradient).abs().max().item())
    return worst


def worker(rank, world, port, jobs, failures):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    groups = {ranks: dist.new_group(list(range(ranks))) for ranks in range(1, world + 1)}
    for job in jobs:
        if rank >= job["ranks"]:
            continue
        worst = train(rank, groups[job["ranks"]], job)
        if worst > 0:
            failures.put(f"FAIL train {job['name']}, {job['form']}: rank {rank} differs by {worst}")
    dist.barrier()
    dist.destroy_process_group()


def check_training(binary, release, folder):
    jobs = []
    for number, case in enumerate(training_cases()):
        plan = folder / f"train{number}.json"
        if not compile_plan(binary, case, plan):
            continue
        for form in FORMATS:
            path, checkpointed = export(binary, plan, form, release)
            jobs.append({"name": str(case), "form": form, "path": str(path), "ranks": case.ranks,
                         "microbatches": case.microbatches, "checkpointed": checkpointed})
    failures = mp.get_context("spawn").SimpleQueue()
    mp.spawn(worker, (4, free_port(), jobs, failures), nprocs=4)
    count = 0
    while not failures.empty():
        print(failures.get(), flush=True)
        count += 1
    recompute = sum(bool(job["checkpointed"]) for job in jobs)
    return len(jobs) // len(FORMATS), recompute // len(FORMATS), count


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contraflow", help="path of the program contraflow")
    parser.add_argument("--torch", default="2.15", metavar="VERSION",
                        help="the release to export for (default: 2.15)")
    parser.add_argument("--only", choices=("load", "train"), help="half of it")
    options = parser.parse_args()
    binary = str(Path(options.contraflow).resolve())
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.only != "train":
            plans, loads, failures = check_loads(binary, options.torch, folder)
            print(f"{plans} plans: {loads} times loaded, lowered and simulated, {failures} failures",
                  flush=True)
            failed += failures
        if options.only != "load":
            plans, recompute, failures = check_training(binary, options.torch, folder)
            print(f"{plans} plans trained in both forms, {recompute} with recompute: "
                  f"{failures} failures", flush=True)
            failed += failures
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
