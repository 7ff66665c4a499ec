"""Cost of PlanSchedule beside PyTorch's own runtime (torch 2.9 or newer): the same plans, modules and
messages over gloo, with modules so small that little else is measured. Prints microseconds for each
compute instruction: the best of several rounds, in turn, of the slowest rank's time, and of the processor
time of the threads that call step(), which a busy machine changes less.

    PYTHONPATH=build/release/tools/python python3 tests/python/torch_overhead.py
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

import contraflow as cf
import contraflow.torch as cft
from torch_model import WIDTH, batch, expect_success, loss_fn, run_processes

ROUNDS, STEPS = 7, 8


def stage():
    """No weight twice: PyTorch's runtime cannot split the backward of such a stage."""
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(),
                               torch.nn.Linear(WIDTH, WIDTH))


def timed(step, modules):
    dist.barrier()
    begin, busy = time.perf_counter(), time.thread_time()
    for _ in range(STEPS):
        for module in modules:
            module.zero_grad(set_to_none=True)
        step()
    took = torch.tensor([time.perf_counter() - begin])
    busy = torch.tensor([time.thread_time() - busy])
    dist.all_reduce(took, dist.ReduceOp.MAX)
    dist.all_reduce(busy)
    return took.item() / STEPS, busy.item() / STEPS


def measure(rank, ranks, plans):
    for text in plans:
        plan = cf.Plan.from_json(text)
        modules = {s: stage() for s in plan.stages_of(rank)}
        device = torch.device("cpu")
        theirs = cft.as_torch_schedule(
            plan, [PipelineStage(m, s, plan.stages, device) for s, m in modules.items()], loss_fn)
        ours = cft.PlanSchedule(plan, modules, loss_fn)
        x, y = (values.flatten(0, 1) for values in batch(plan.microbatches))
        first = (x,) if 0 in modules else ()
        last = {"target": y, "losses": []} if plan.stages - 1 in modules else {}
        steps = {"theirs": lambda: theirs.step(*first, **last), "ours": lambda: ours.step(*first, **last)}
        times = {name: [] for name in steps}
        gradients = []
        for _ in range(ROUNDS + 1):
            for name, step in steps.items():
                times[name].append(timed(step, modules.values()))
                gradients.append([p.grad.clone() for m in modules.values() for p in m.parameters()])
        for others in gradients[1:]:
            assert all(map(torch.equal, gradients[0], others)), f"{plan.schedule}: other gradients"
        if rank == 0:
            count = sum(i.op in ("F", "B", "W", "BW", "FB") for p in plan.programs for i in p)
            best = {name: [1e6 * min(column) / count for column in zip(*took[1:])]
                    for name, took in times.items()}
            wall, busy = zip(best["ours"], best["theirs"])
            print(f"{plan.schedule:18} {count:4} {ranks * wall[0]:8.1f} {ranks * wall[1]:8.1f} "
                  f"{wall[0] / wall[1]:6.2f} {busy[0]:8.1f} {busy[1]:8.1f} {busy[0] / busy[1]:6.2f}",
                  flush=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--ranks", type=int, default=2)
    arguments.add_argument("--microbatches", type=int, default=16)
    given = arguments.parse_args()
    print(f"torch {torch.__version__}, gloo, {given.ranks} ranks, {given.microbatches} micro-batches; "
          "us for each instruction")
    print(f"{'':18} {'':4} {'time':>8} {'':8} {'':6} {'processor':>9}\n"
          f"{'schedule':18} {'n':>4} {'ours':>8} {'PyTorch':>8} {'ratio':>6} {'ours':>8} {'PyTorch':>8} "
          f"{'ratio':>6}", flush=True)
    plans = [cf.compile(name, ranks=given.ranks, microbatches=given.microbatches, **options).to_json()
             for name, options in (("gpipe", {}), ("1f1b", {}), ("interleaved-1f1b", {"chunks": 2}),
                                   ("zb-1p", {}), ("zb-v", {}), ("dualpipe-v", {}),
                                   ("auto", {"placement": "linear", "budget": "100ms"}))]
    expect_success(run_processes(given.ranks, measure, given.ranks, plans, limit=600))


if __name__ == "__main__":
    main()
