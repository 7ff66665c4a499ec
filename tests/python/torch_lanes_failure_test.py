"""A part of a layer fails, or its process is killed: every process ends soon, and a report names lane, part and
layer. `--full` tries every part in every direction (minutes)."""

import argparse
import os
import signal
import sys
import time

from torch_layers import batch, layers_of, loss_fn
from torch_model import Processes, dist, rows_of

import contraflow as cf
import contraflow.torch as cft

COSTS = {"unit": "ms", "comm": {"time": 1}, "moe": {
    "layers_per_stage": 2, "attn_f": 1, "attn_b": 1, "attn_w": 1, "mlp_f": 1, "mlp_b": 1, "mlp_w": 1, "dispatch_f": 1,
    "combine_f": 1, "dispatch_b": 1, "combine_b": 1}}
OPS = ("ATTN_F", "DISPATCH_F", "MLP_F", "COMBINE_F", "COMBINE_B", "MLP_B", "MLP_W", "DISPATCH_B", "ATTN_B", "ATTN_W")
LIMIT = 10.0  # seconds from the fault to the end of every process


def work(me, text, bad, op, kill, path):
    rank, expert = divmod(me, 2)
    pipelines = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    plan = cf.Plan.from_json(text)
    stages = {s: layers_of(plan, s, expert, groups[rank], 2) for s in plan.stages_of(rank)}
    for layer in sum(stages.values(), []):
        for p in layer.e.parameters():
            p.expert = True
    schedule = cft.PlanSchedule(plan, stages, loss_fn, pipelines[expert], expert_parallel=groups[rank])
    walk = schedule._walk
    at = [k for k, i in enumerate(walk.program.instructions) if i.op == op][3]

    def fault():
        with open(path, "w") as file:
            file.write(str(time.time()))
        if kill:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ArithmeticError("out of numbers")
    if me == bad:
        position = walk.index_of.index(at)
        walk.operations[position] = walk.operations[position][0], fault
    inputs, targets = batch(plan.microbatches, expert)
    schedule.step(rows_of(plan, rank, 0, inputs), target=rows_of(plan, rank, plan.stages - 1, targets))


def scenario(text, bad, op, kill):
    path = f"/tmp/{os.getpid()}.fault"
    try:
        results = Processes(4, work, text, bad, op, kill, path).results(60)
        ended = time.time()
        with open(path) as file:
            took = ended - float(file.read())
    finally:
        if os.path.exists(path):
            os.remove(path)
    place = f"{op} of process {bad}, {'killed' if kill else 'failed'}"
    assert all(code not in (0, None) for code, _ in results), (place, results)
    assert took < LIMIT, (place, took)
    lane = "alltoall" if op[0] in "DC" else "compute"
    printed = "\n".join(text for _, text in results)
    if not kill:
        assert f"{op} s" in results[bad][1] and f"lane={lane}" in results[bad][1], (place, results[bad])
        for _, text in results:  # also of the other pipeline, whose experts are the same
            assert "out of numbers" in text and f"{op} s" in text, (place, text)
    assert " l" in printed and "lane=" in printed, (place, printed)
    print(f"{place}: {took:.1f} s", flush=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--full", action="store_true")
    full = arguments.parse_args().full
    text = cf.compile("dualpipe", ranks=2, microbatches=4, costs=COSTS, level="component",
                      expert_parallel=2).to_json()
    for number, op in enumerate(OPS if full else ("DISPATCH_B", "MLP_F")):
        for kill in (False, True) if full else (number == 1,):
            for bad in (0, 3) if full else (1,):
                scenario(text, bad, op, kill)


if __name__ == "__main__":
    sys.exit(main())
