"""A plain training loop: any schedule, learning rates that fall, clipped gradients, several steps to one of the
optimizer, the loss of held back rows, and a checkpoint that another schedule and number of ranks go on from.

    torchrun --nproc_per_node 4 tools/python/examples/train_loop.py FILE [CHECKPOINT] [SCHEDULE]
"""

import os
import sys

import contraflow as cf
import torch
import torch.distributed as dist
from contraflow.torch import PlanSchedule, split
from torch import nn

WIDTH, CONTEXT, ROWS, STEPS, ACCUMULATE = 32, 16, 32, 20, 2


class Block(nn.TransformerEncoderLayer):
    def forward(self, x):
        hidden = torch.full((CONTEXT, CONTEXT), float("-inf"), device=x.device).triu(1)
        return super().forward(x, hidden)


def loss_fn(output, target):
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def batch(text, seed):
    begins = torch.randint(len(text) - CONTEXT, (ROWS,), generator=torch.Generator().manual_seed(seed)).tolist()
    rows = torch.stack([text[b:b + CONTEXT + 1] for b in begins])
    return rows[:, :-1], rows[:, 1:]


cuda = torch.cuda.is_available()
if cuda:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if cuda else "gloo")
rank, ranks, device = dist.get_rank(), dist.get_world_size(), "cuda" if cuda else "cpu"
checkpoint, name = [*sys.argv[2:], "", "zb-v"][0], [*sys.argv[3:], "zb-v"][0]

torch.manual_seed(0)
blocks = [Block(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True) for _ in range(8)]
model = nn.Sequential(nn.Embedding(256, WIDTH), *blocks, nn.Linear(WIDTH, 256))
plan = cf.compile(name, ranks=ranks, microbatches=8)
schedule = PlanSchedule(plan, split(model, plan, rank, device=device), loss_fn)
optimizer = torch.optim.AdamW([p for _, p in schedule.named_parameters()], lr=3e-3)
rates = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, STEPS)
if checkpoint and os.path.exists(checkpoint):
    schedule.load_state_dict(torch.load(checkpoint))

text = torch.tensor(list(open(sys.argv[1], "rb").read()), device=device)
train, held = text[:-len(text) // 10], text[-len(text) // 10:]
for step in range(STEPS):
    optimizer.zero_grad()
    for part in range(ACCUMULATE):  # gradients add up
        x, y = schedule.rows(batch(train, ACCUMULATE * step + part))
        schedule.step(x, target=y)
    for _, p in schedule.named_parameters():
        p.grad /= ACCUMULATE
    loss, norm = schedule.loss(), schedule.clip_grad_norm_(1.0)
    optimizer.step()
    rates.step()
    if rank == 0:
        print(f"step {step} loss {loss:.4f} norm {norm:.3f}", flush=True)
x, y = schedule.rows(batch(held, 0))
schedule.eval(x, target=y)
loss = schedule.loss()
parts = [None] * ranks
dist.all_gather_object(parts, {n: t.cpu() for n, t in schedule.state_dict().items()})
if rank == 0:
    print(f"held back: loss {loss:.4f}", flush=True)
    if checkpoint:
        torch.save({n: t for part in parts for n, t in part.items()}, checkpoint)
dist.destroy_process_group()
