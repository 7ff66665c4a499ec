"""Trains a causal model of Hugging Face with any schedule; its weights are made on the ranks that hold them.

    torchrun --nproc_per_node 4 tools/python/examples/train_hf.py FILE [SCHEDULE]
"""

import os
import sys

import contraflow as cf
import torch
import torch.distributed as dist
import transformers
from contraflow.torch import PlanSchedule, split

CONTEXT, ROWS, STEPS = 32, 32, 20

cuda = torch.cuda.is_available()
if cuda:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if cuda else "gloo")
rank, ranks, device = dist.get_rank(), dist.get_world_size(), "cuda" if cuda else "cpu"


def batch(text, seed):
    begins = torch.randint(len(text) - CONTEXT, (ROWS,), generator=torch.Generator().manual_seed(seed)).tolist()
    rows = torch.stack([text[b:b + CONTEXT + 1] for b in begins])
    return rows[:, :-1], rows[:, 1:]


# The model: any with model.layers; from_pretrained(..) instead, without the meta device, has its weights.
config = transformers.Qwen3MoeConfig(
    vocab_size=256, hidden_size=64, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    intermediate_size=128, moe_intermediate_size=64, num_experts=4, num_experts_per_tok=2,
    output_router_logits=True, tie_word_embeddings=True)
with torch.device("meta"):
    model = transformers.AutoModelForCausalLM.from_config(config)
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

# The pipeline: costs say what an embedding, a block and the head take, so that stages are balanced.
costs = {"unit": "ms", "layers": [{"name": "embedding", "f": 1, "b": 0, "w": 1},
                                  {"name": "block", "repeat": 8, "f": 4, "b": 8, "w": 4},
                                  {"name": "head", "f": 3, "b": 3, "w": 3}]}
plan = cf.compile([*sys.argv[2:], "dualpipe"][0], ranks=ranks, microbatches=8, costs=costs)
stages = split(model, plan, rank, device=device)
schedule = PlanSchedule(plan, stages, lambda logits, labels: torch.nn.functional.cross_entropy(
    logits.flatten(0, 1).float(), labels.flatten()))
schedule.sync_parameters()  # both holders of a stage begin alike
optimizer = torch.optim.AdamW([p for _, p in schedule.named_parameters()], lr=3e-3)

text = torch.tensor(list(open(sys.argv[1], "rb").read()), device=device)
for step in range(STEPS):
    x, y = schedule.rows(batch(text, step))
    schedule.step(x, target=y, attention_mask=torch.ones(ROWS, CONTEXT, dtype=torch.long, device=device))
    loss, balance, norm = schedule.loss(), schedule.loss(added=True), schedule.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        print(f"step {step} loss {loss:.4f} balance {balance:.4f} norm {norm:.3f}", flush=True)
dist.destroy_process_group()
