"""Trains a small model of bytes with DualPipe: every rank holds a stage of each direction.

    torchrun --nproc_per_node 4 tools/python/examples/train_dualpipe.py FILE
"""

import os
import sys

import contraflow as cf
import torch
import torch.distributed as dist
from contraflow.torch import PlanSchedule
from torch import nn

if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
    sys.exit(__doc__)

WIDTH, CONTEXT, ROWS, STEPS = 32, 16, 4, 20  # ROWS of each micro-batch


class Block(nn.TransformerEncoderLayer):
    def forward(self, x):
        hidden = torch.full((CONTEXT, CONTEXT), float("-inf"), device=x.device).triu(1)
        return super().forward(x, hidden)


def stage(number, stages):
    torch.manual_seed(number)  # both holders of a stage begin with the same weights
    first = [nn.Embedding(256, WIDTH)] if number == 0 else []
    blocks = [Block(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True) for _ in range(2)]
    last = [nn.Linear(WIDTH, 256)] if number == stages - 1 else []
    return nn.Sequential(*first, *blocks, *last)


def loss_fn(output, target):
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


cuda = torch.cuda.is_available()
if cuda:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if cuda else "gloo")
rank, ranks, device = dist.get_rank(), dist.get_world_size(), "cuda" if cuda else "cpu"

plan = cf.compile("dualpipe", ranks=ranks, microbatches=2 * ranks)
stages = {s: stage(s, plan.stages).to(device) for s in plan.stages_of(rank)}
schedule = PlanSchedule(plan, stages, loss_fn)
optimizer = torch.optim.AdamW([p for m in stages.values() for p in m.parameters()], lr=1e-3)
text = torch.tensor(list(open(sys.argv[1], "rb").read()), device=device)
losses = []
for step in range(STEPS):
    generator = torch.Generator().manual_seed(step)  # one half of the batch starts at each end
    begins = torch.randint(len(text) - CONTEXT, (2, ranks * ROWS), generator=generator)
    rows = [torch.stack([text[b:b + CONTEXT + 1] for b in half.tolist()]) for half in begins]
    start, end = rows if rank == 0 else reversed(rows)
    optimizer.zero_grad()
    schedule.step(start[:, :-1], target=end[:, 1:], losses=losses)
    optimizer.step()
    if rank == 0:
        print(f"step {step} loss {torch.stack(losses).mean():.4f}", flush=True)
dist.destroy_process_group()
