"""A small model, its training in one process, and processes on this machine to run a pipeline in."""

import multiprocessing
import os
import socket
import sys
import tempfile
import time
import traceback

try:
    import torch
    import torch.distributed as dist
except ImportError:
    print("skipped: no torch")
    sys.exit(77)

from contraflow.torch.backward import STARTS_AT_EDGES

WIDTH, ROWS = 8, 2  # of an activation of one micro-batch


class Block(torch.nn.Module):
    """A stage with weights at several places, one of them used twice."""

    TWICE = 3  # its place among the parameters

    def __init__(self, number, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(1000 * seed + number)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.rand(p.shape, generator=generator) - 0.5)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x)))) * self.up.bias


def loss_fn(output, target):
    return torch.nn.functional.mse_loss(output, target)


def batch(microbatches, replica=0):
    """Input and target of each micro-batch."""
    generator = torch.Generator().manual_seed(7 + replica)
    return tuple(torch.randn(microbatches, ROWS, WIDTH, generator=generator) for _ in range(2))


class Reference:
    """The same training in one process: losses, and the gradients of every stage and micro-batch."""

    def __init__(self, stages, microbatches, replica=0, device="cpu"):
        modules = [Block(s).to(device) for s in range(stages)]
        inputs, targets = (values.to(device) for values in batch(microbatches, replica))
        self.losses, self.grads = [], [[] for _ in modules]
        for m in range(microbatches):
            y = inputs[m]
            for module in modules:
                y = module(y)
            loss = loss_fn(y, targets[m])
            loss.backward()
            self.losses.append(loss.detach())
            for s, module in enumerate(modules):
                self.grads[s].append([p.grad for p in module.parameters()])
                module.zero_grad(set_to_none=True)

    def sum(self, stage, order, twice=None):
        """The gradients of a stage, added in an order of micro-batches; in the order `twice` that of the weight
        which is used twice."""
        total = [g.clone() for g in self.grads[stage][order[0]]]
        for at, t in enumerate(total):
            own = order if twice is None or at != Block.TWICE else twice
            t.copy_(self.grads[stage][own[0]][at])
            for m in own[1:]:
                t.add_(self.grads[stage][m][at])
        return total


def rows_of(plan, rank, stage, values):
    """The rows of `values` (micro-batch by micro-batch) whose `stage` lives on a rank."""
    mine = sorted(m for route in plan.routes if route.ranks[stage] == rank
                  for m in route.microbatches)
    return values[mine].flatten(0, 1) if mine else None


def weight_order(plan, rank, stage, op="W"):
    """The micro-batches in the order in which a rank adds their weight gradients of a stage, in W or, those of
    weights used twice, in B. Torch without gradient edges needs W for all."""
    if not STARTS_AT_EDGES:
        op = "W"
    order = []
    for i in plan.programs[rank]:
        if i.op in (op, "BW") and i.stage == stage:
            order.append(i.microbatch)
        elif i.op == "FB" and i.back_stage == stage:
            order.append(i.back_microbatch)
    return order


def _process(work, rank, world, port, path, backend, arguments):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                      WORLD_SIZE=str(world))
    if backend == "nccl":  # all on one GPU, each as if on a machine of its own
        os.environ.update(NCCL_HOSTID=f"r{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
        os.environ.pop("NCCL_MAX_CTAS", None)
        torch.cuda.set_device(0)
    torch.set_num_threads(1)
    with open(f"{path}/{rank}", "w") as out:
        os.dup2(out.fileno(), 2)
        try:
            dist.init_process_group(backend, rank=rank, world_size=world)
            work(rank, *arguments)
            dist.barrier()
            if backend == "nccl":  # its barrier is done on this GPU before it is on others
                torch.cuda.synchronize()
                dist.destroy_process_group()
            sys.stderr.flush()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)


class Processes:
    """Runs work(rank, *arguments) in forked processes with a group of all of them."""

    def __init__(self, world, work, *arguments, backend="gloo"):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._folder = tempfile.TemporaryDirectory()
        # A fork has no CUDA where the parent has begun it, and torch may do that when it is imported.
        method = multiprocessing.get_context("spawn" if backend == "nccl" else "fork")
        self._processes = [method.Process(target=_process, args=(work, rank, world, port,
                                                               self._folder.name, backend, arguments))
                           for rank in range(world)]
        for process in self._processes:
            process.start()

    def results(self, limit=240.0):
        """(exit code, stderr) by rank. Processes that still run after `limit` seconds are killed, with exit
        code None."""
        end = time.monotonic() + limit
        results = []
        for rank, process in enumerate(self._processes):
            process.join(max(0.0, end - time.monotonic()))
            code = process.exitcode
            if code is None:
                process.kill()
                process.join()
            with open(f"{self._folder.name}/{rank}") as printed:
                results.append((code, printed.read()))
        self._folder.cleanup()
        return results


def run_processes(world, work, *arguments, limit=240.0, backend="gloo"):
    return Processes(world, work, *arguments, backend=backend).results(limit)


def expect_success(results):
    for rank, (code, printed) in enumerate(results):
        if code != 0:
            print(f"process {rank} ended with {code}:\n{printed}")
    if any(code != 0 for code, _ in results):
        sys.exit(1)
