"""Stages sharded with fully_shard over two replicas, under all kinds of plans, against one process: losses
bit for bit, gradients within 1e-6. Also what is refused. Needs torch 2.15.

    PYTHONPATH=build/release/tools/python python3 tests/python/torch_sharded.py
"""

import os
import sys
import tempfile

from torch_model import (Block, Reference, batch, dist, expect_success, loss_fn, rows_of, run_processes,
                         torch, weight_order)

import contraflow as cf
from contraflow.torch import PlanSchedule

try:
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard
    from torch.distributed.tensor import DTensor
except ImportError:
    FSDPModule = None
if not hasattr(FSDPModule, "finalize_backward"):
    print("skipped: needs torch 2.15")
    sys.exit(77)

REPLICAS = 2


def meshes(rank, ranks):
    """The pipeline of this process, and its replicas."""
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (REPLICAS, ranks),
                                                          mesh_dim_names=("dp", "pp"))
    return mesh["pp"].get_group(), mesh["dp"]


def sharded(stage, mesh, deep):
    module = Block(stage)
    if deep:
        fully_shard(module.down, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def train(rank, ranks, plans):
    group, mesh = meshes(rank, ranks)
    replica, rank = divmod(rank, ranks)
    for number, text in enumerate(plans):
        plan = cf.Plan.from_json(text)
        stages = {s: sharded(s, mesh, number % 2 == 1) for s in plan.stages_of(rank)}
        schedule = PlanSchedule(plan, stages, loss_fn, group)
        schedule.sync_parameters()
        inputs, targets = batch(plan.microbatches, replica)
        x, target = rows_of(plan, rank, 0, inputs), rows_of(plan, rank, plan.stages - 1, targets)
        references = [Reference(plan.stages, plan.microbatches, d) for d in range(REPLICAS)]
        for times in (1, 1, 2):  # the last adds to the one before it
            losses, again = [], []
            for module in stages.values() if times == 1 else ():
                module.zero_grad(set_to_none=True)
            schedule.step(x, target=target, losses=losses)
            schedule.eval(x, target=target, losses=again)
            mine = sorted(m for r in plan.routes if r.ranks[plan.stages - 1] == rank for m in r.microbatches)
            expected = [references[replica].losses[m] for m in mine]
            assert len(losses) == len(mine) and all(map(torch.equal, losses, expected)), plan
            assert all(map(torch.equal, again, expected)), plan
            for s, module in stages.items():
                holders = [r for r in range(plan.ranks) if s in plan.stages_of(r)]
                sums = [references[d].sum(s, weight_order(plan, holder, s),
                                         weight_order(plan, holder, s, "B"))
                        for d in range(REPLICAS) for holder in holders]
                for p, *parts in zip(module.parameters(), *sums):
                    assert isinstance(p, DTensor), "gathered after the step"
                    grad = sum(parts) * (times / (plan.microbatches * REPLICAS))
                    difference = (p.grad.full_tensor() - grad).abs().max()
                    assert difference <= times * 1e-6, (plan, rank, s, difference)
        around(plan, schedule, references, times)


def around(plan, schedule, references, times):
    """The norm over all shards of all ranks, each counted once, and a state of whole tensors."""
    scale = times / (plan.microbatches * REPLICAS)
    grads = []
    for s in range(plan.stages):
        holders = [r for r in range(plan.ranks) if s in plan.stages_of(r)]
        sums = [reference.sum(s, weight_order(plan, holder, s)) for reference in references for holder in holders]
        grads += [sum(parts) * scale for parts in zip(*sums)]
    for norm_type in (2.0, 1.0, float("inf")):
        expected = torch.linalg.vector_norm(torch.cat([g.reshape(-1) for g in grads]), norm_type)
        before = [p.grad.full_tensor() for _, p in schedule.named_parameters()]
        norm = schedule.clip_grad_norm_(expected / 2, norm_type)
        torch.testing.assert_close(norm, expected, rtol=1e-5, atol=0)
        for (_, p), grad in zip(schedule.named_parameters(), before):
            torch.testing.assert_close(p.grad.full_tensor(), grad / 2, rtol=1e-4, atol=1e-8)
            p.grad.mul_(2)
    state = {name: p.detach().full_tensor() + 1 for name, p in schedule.named_parameters()}
    schedule.load_state_dict(state)
    for name, p in schedule.named_parameters():
        assert isinstance(p, DTensor) and torch.equal(p.detach().full_tensor(), state[name]), name


def refusals(rank, ranks):
    group, mesh = meshes(rank, ranks)
    plan = cf.compile("1f1b", ranks=ranks, microbatches=2)
    twice = cf.compile("1f1b", ranks=ranks, microbatches=2, data_parallel=3)
    replicas, stage = mesh.get_group(), rank % ranks

    def inner():
        module = Block(stage)
        fully_shard(module.up, mesh=mesh)
        return module

    def without():
        module = Block(stage)
        return fully_shard(module, mesh=mesh, ignored_params={module.up.bias})

    for wrap, given, options, text in (
            (lambda: sharded(stage, mesh, False), plan, {"data_parallel": replicas}, "leave out data_parallel="),
            (lambda: sharded(stage, mesh, True), plan, {"grad_reduce": print}, "leave out grad_reduce="),
            (lambda: sharded(stage, mesh, False), twice, {}, "sharded over 2 processes, and the plan is for 3"),
            (inner, plan, {}, "(up) is sharded with fully_shard, but not the stage as a whole"),
            (without, plan, {}, "not its parameter up.bias"),
            (lambda: FullyShardedDataParallel(Block(stage), replicas, device_id=torch.device("cpu")), plan,
             {"grad_reduce": print}, "wrapped in FullyShardedDataParallel"),
            (lambda: torch.nn.parallel.DistributedDataParallel(Block(stage), process_group=replicas), plan,
             {"grad_reduce": print}, "wrapped in DistributedDataParallel")):
        try:
            PlanSchedule(given, {stage: wrap()}, loss_fn, group, **options)
        except ValueError as error:
            assert text in str(error), (text, error)
        else:
            raise AssertionError("not refused: " + text)


def imported(name, **options):
    """A plan from PyTorch's CSV with UNSHARD, RESHARD and REDUCE_GRAD."""
    plan = cf.compile(name, microbatches=6, **options)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "order.csv")
        plan.to_torch_csv(path, form="compute_comms")
        with open(path) as file:
            text = file.read()
        assert all(cell in text for cell in ("UNSHARD", "RESHARD", "WAIT_REDUCE_GRAD"))
        return cf.Plan.from_torch_csv(path)


def main():
    for ranks in (2, 4):
        plans = [cf.compile(name, ranks=ranks, microbatches=2 * ranks, **options) for name, options in (
            ("1f1b", {}), ("1f1b", {"recompute": "full"}), ("zb-1p", {}), ("zb-1p", {"data_parallel": 2}),
            ("zb-v", {}), ("dualpipe-v", {}), ("dualpipe", {}), ("chimera", {}),
            ("interleaved-1f1b", {"chunks": 2}),
            ("auto", {"placement": "bidirectional", "budget": "20ms"}))]
        plans += [imported("1f1b", ranks=ranks), imported("zb-v", ranks=ranks)]
        expect_success(run_processes(ranks * REPLICAS, train, ranks, [plan.to_json() for plan in plans]))
        print(f"{len(plans)} plans on {ranks} ranks x {REPLICAS}, sharded: as one process")
    expect_success(run_processes(2 * REPLICAS, refusals, 2))
    print("what cannot be run is refused")


if __name__ == "__main__":
    main()
