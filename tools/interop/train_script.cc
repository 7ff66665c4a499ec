#include "tools/interop/launch.h"

// The script is written out rather than installed: it is the user's to change.

namespace contraflow {
namespace {

constexpr std::string_view kScript =
    R"py("""Trains a model of Hugging Face on random tokens, by the plan.json beside this file.

    torchrun --nproc_per_node GPUS train.py CONFIG.json [--tiny] [--steps N]

GPUs: ranks x replicas x devices that share experts; on several nodes add --nnodes and --rdzv_endpoint. --tiny: for a CPU.
"""

import argparse
import os

import contraflow as cf
import torch
import torch.distributed as dist
import transformers
from contraflow.torch import PlanSchedule, split
from torch.distributed.optim import ZeroRedundancyOptimizer

SEQUENCE, ROWS, ZERO = @SEQUENCE@, @ROWS@, @ZERO@  # tokens, sequences of a micro-batch
TINY = {"hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
        "vocab_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "q_lora_rank": 16,
        "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "pad_token_id": 0}

parser = argparse.ArgumentParser()
parser.add_argument("config")
parser.add_argument("--tiny", action="store_true")
parser.add_argument("--steps", type=int, default=10)
options = parser.parse_args()
plan = cf.Plan.load(os.path.join(os.path.dirname(os.path.abspath(__file__)), "plan.json"))
config = transformers.AutoConfig.from_pretrained(options.config)
for key in [key for key in TINY if options.tiny and getattr(config, key, None) is not None]:
    setattr(config, key, TINY[key])
device, names = "cuda" if torch.cuda.is_available() else "cpu", ("ranks", "replicas", "experts")
mesh = dist.device_mesh.init_device_mesh(device, (plan.ranks, plan.data_parallel, plan.expert_parallel),
                                         mesh_dim_names=names)
replicas, experts = (mesh[name].get_group() if mesh[name].size() > 1 else None for name in names[1:])
with torch.device("meta"):
    dtype = torch.float32 if options.tiny else torch.bfloat16
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
stages = split(model, plan, mesh["ranks"].get_local_rank(), expert_parallel=experts, device=device)
schedule = PlanSchedule(plan, stages, lambda logits, labels: torch.nn.functional.cross_entropy(
    logits.flatten(0, 1).float(), labels.flatten()), mesh["ranks"].get_group(),
    data_parallel=replicas, expert_parallel=experts)
schedule.sync_parameters()
parameters = [p for _, p in schedule.named_parameters()]
# AdamW in the model's own type.
optimizer = (ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, process_group=replicas, lr=1e-3)
             if ZERO and replicas else torch.optim.AdamW(parameters, lr=1e-3))

torch.manual_seed(dist.get_rank() % (plan.data_parallel * plan.expert_parallel))  # one batch a pipeline
shape = plan.microbatches * ROWS, (16 if options.tiny else SEQUENCE) + 1
tokens = torch.randint(config.get_text_config().vocab_size, shape).to(device)
x, y = schedule.rows((tokens[:, :-1], tokens[:, 1:]))
for step in range(options.steps):
    schedule.step(x, target=y)
    loss = schedule.loss()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"step {step} loss {loss:.4f}", flush=True)
dist.destroy_process_group()
)py";

}  // namespace

std::string WriteTrainScript(const Launch& launch) {
  std::string text(kScript);
  const auto fill = [&](std::string_view name, int64_t value) {
    text.replace(text.find(name), name.size(), std::to_string(value));
  };
  fill("@SEQUENCE@", launch.sequence);
  fill("@ROWS@", launch.micro_batch);
  fill("@ZERO@", launch.zero);
  return text;
}

}  // namespace contraflow
