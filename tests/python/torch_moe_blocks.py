"""Layers of Hugging Face's transformers in parts, with their experts over two processes, under plans of two ranks:
against the model's own code in one process, and plans of level component against those of level comm. Needs
transformers 5.

    PYTHONPATH=build/release/tools/python python3 tests/python/torch_moe_blocks.py [FAMILY]..
"""

import sys
import types

from torch_components_test import pair, weight_orders
from torch_model import dist, expect_success, rows_of, run_processes, torch

import contraflow as cf
from contraflow.torch import PlanSchedule, from_moe_block
from contraflow.torch.island import Island, has_gradient, leaves_of

EXPERTS, WORDS, WIDTH, TOKENS, ROWS = 4, 48, 32, 6, 2  # experts of a layer; rows of a micro-batch
SHAPES = {"llama": "dddd", "mixtral": "mmmm", "qwen3_moe": "mmmm", "deepseek_v3": "dmmm", "gpt_oss": "mmmm"}
PLANS = (("dualpipe", {"overlap": "all"}), ("zb-1p", {}), ("1f1b", {"recompute": "experts"}))


def model_of(family):
    """A small model with random weights, also in biases, sinks and what corrects a routing."""
    import transformers as hf
    common = {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": len(SHAPES[family]),
              "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
              "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
              "attn_implementation": "eager" if family == "gpt_oss" else "sdpa"}
    routed = {"num_local_experts": EXPERTS, "num_experts_per_tok": 2}
    config = {
        "llama": lambda: hf.LlamaConfig(**common),
        "mixtral": lambda: hf.MixtralConfig(**common, **routed),
        "qwen3_moe": lambda: hf.Qwen3MoeConfig(**common, head_dim=8, num_experts=EXPERTS, num_experts_per_tok=2,
                                               moe_intermediate_size=24, norm_topk_prob=True),
        "deepseek_v3": lambda: hf.DeepseekV3Config(
            **{**common, "num_key_value_heads": 4}, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8,
            qk_nope_head_dim=8, v_head_dim=8, n_routed_experts=EXPERTS, num_experts_per_tok=2, n_group=2,
            topk_group=1, n_shared_experts=1, first_k_dense_replace=1, moe_intermediate_size=24),
        "gpt_oss": lambda: hf.GptOssConfig(**common, **routed, head_dim=8, sliding_window=4),
    }[family]()
    torch.manual_seed(11)
    model = hf.AutoModelForCausalLM.from_config(config)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name.endswith(("bias", "sinks", "router.weight", "gate.weight")):
            tensor.data.normal_(std=0.3)
    return model.train()


class Head(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.norm, self.lm_head = model.model.norm, model.lm_head

    def forward(self, x):
        return self.lm_head(self.norm(x))


def loss_fn(logits, labels):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def batch(microbatches, expert):
    generator = torch.Generator().manual_seed(70 + expert)
    return tuple(torch.randint(3, WORDS, (microbatches, ROWS, TOKENS), generator=generator) for _ in range(2))


def keywords(model):
    """The tables that all layers share."""
    positions = torch.arange(TOKENS)[None]
    far = positions.T - positions
    allowed = {"full_attention": far >= 0, "sliding_attention": (far >= 0) & (far < 4)}
    masks = {kind: torch.zeros(1, 1, TOKENS, TOKENS).masked_fill(~mask, torch.finfo(torch.float32).min)
             for kind, mask in allowed.items()}
    mask = masks if model.config.model_type == "gpt_oss" else masks["full_attention"]
    return {"attention_mask": mask, "position_ids": positions,
            "position_embeddings": model.model.rotary_emb(torch.zeros(1, 1, WIDTH), positions)}


def reference(family, microbatches):
    """Losses by process and micro-batch, and gradients, of the model in one process."""
    model, losses = model_of(family), {}
    for expert in range(2):
        inputs, labels = batch(microbatches, expert)
        for m in range(microbatches):
            loss = loss_fn(model(input_ids=inputs[m], use_cache=False).logits, labels[m])
            (loss / (2 * microbatches)).backward()
            losses[expert, m] = loss.item()
    return losses, {name: p.grad for name, p in model.named_parameters()}


def trained(family, plan, sizes, rank, expert, pipeline, group, capacity=None):
    """Losses and gradients by their names in the model, and which of these are of experts; `sizes` has the layers
    of each stage."""
    model, stages, paths = model_of(family), {}, {}
    whole = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for s in plan.stages_of(rank):
        here, first, last = range(sum(sizes[:s]), sum(sizes[:s + 1])), s == 0, s == plan.stages - 1
        layers = [from_moe_block(model.model.layers[k], group, capacity) for k in here]
        stages[s] = [model.model.embed_tokens] * first + layers + [Head(model)] * last
        paths[s] = ["model.embed_tokens."] * first + [f"model.layers.{k}." for k in here] + [""] * last

    def names(stage, name):
        at, name = name.split(".", 1)
        return "model.norm.weight" if name == "norm.weight" else paths[stage][int(at)] + name

    schedule = PlanSchedule(plan, stages, loss_fn, pipeline, expert_parallel=group, names=names)
    inputs, labels = batch(plan.microbatches, expert)
    x, target = rows_of(plan, rank, 0, inputs), rows_of(plan, rank, plan.stages - 1, labels)
    with torch.no_grad():
        for p in schedule.module().parameters():
            p.zero_()
    schedule.load_state_dict(whole)
    losses, again = [], []
    arguments = [] if x is None else [x]
    schedule.step(*arguments, target=target, losses=losses, **keywords(model))
    schedule.eval(*arguments, target=target, losses=again, **keywords(model))
    assert all(map(torch.equal, losses, again))
    grads = {name: (p.grad, schedule.is_spread(p)) for name, p in schedule.named_parameters()}
    state = schedule.state_dict()
    assert all(hasattr(state[name], "placements") == spread for name, (_, spread) in grads.items())
    assert all((".experts." in name) == schedule.is_spread(p) for name, p in schedule.named_parameters()), list(grads)
    schedule.close()
    return losses, grads


def check_weights_wait(family):
    """No weight gradient of a block is computed in B."""
    model = model_of(family)
    block, kwargs = from_moe_block(model.model.layers[-1]), keywords(model)

    def check(function, *inputs):
        island = Island(function)
        made = island.forward(inputs)
        island.backward([torch.ones_like(y) if has_gradient(y) else None for y in made])
        early = [name for name, p in block.named_parameters() if p.grad is not None]
        assert not early, (function, early)
        island.weight(list(block.parameters()))
        assert any(p.grad is not None for p in block.parameters()), function
        block.zero_grad(set_to_none=True)
        return made

    def attention(x):
        made = block.attention(x, **kwargs)
        return (*made[0], *made[1:]) if isinstance(made, tuple) else made

    made = check(attention, torch.randn(ROWS, TOKENS, WIDTH, requires_grad=True))
    if "d" in SHAPES[family][-1]:
        check(block.mlp, *made)
    else:
        check(block.experts, *leaves_of(block.dispatch(*made[:2])))


def work(me, family, plans):
    torch.set_num_threads(1)
    check_weights_wait(family)
    rank, expert = divmod(me, 2)
    pipelines = [dist.new_group([e, 2 + e]) for e in range(2)]
    groups = [dist.new_group([2 * r, 2 * r + 1]) for r in range(2)]
    most = types.SimpleNamespace(loss=0.0, grad=0.0, relative=0.0)
    for component, whole in [tuple(map(cf.Plan.from_json, texts)) for texts in plans]:
        sizes = component.partition
        right, right_grads = reference(family, component.microbatches)
        losses, grads = trained(family, component, sizes, rank, expert, pipelines[expert], groups[rank])
        ends = sorted(m for route in component.routes if route.ranks[-1] == rank for m in route.microbatches)
        assert len(losses) == len(ends)
        for m, loss in zip(ends, losses):
            most.loss = max(most.loss, abs(loss.item() - right[expert, m]))
        for name, (grad, spread) in grads.items():
            expected = right_grads[name]
            assert spread == (".experts." in name), name
            if spread:
                expected = expected.chunk(2)[expert]
            assert (grad is None) == (expected is None), name
            if grad is not None:
                difference = (grad - expected).abs().max().item()
                relative = difference / expected.abs().max().clamp(min=1e-9).item()
                assert difference <= 1e-6 and relative <= 1e-5, (component.schedule, expert, name, difference, relative)
                most.grad, most.relative = max(most.grad, difference), max(most.relative, relative)
        same = weight_orders(component, rank) == weight_orders(whole, rank)
        for capacity in (None, ROWS * TOKENS):
            both = trained(family, component, sizes, rank, expert, pipelines[expert], groups[rank], capacity)
            other = trained(family, whole, sizes, rank, expert, pipelines[expert], groups[rank], capacity)
            assert all(map(torch.equal, both[0], other[0])), component.schedule
            for key, (grad, _) in both[1].items():
                if grad is not None:
                    assert torch.equal(grad, other[1][key][0]) if same else torch.allclose(
                        grad, other[1][key][0], rtol=0, atol=1e-6), (component.schedule, key)
                    assert torch.allclose(grad, grads[key][0], rtol=0, atol=1e-6), (capacity, key)
        print(f"{component.schedule}: level comm {'bit for bit' if same else 'to 1e-6'}", file=sys.stderr)
    assert most.loss <= 2e-6, most
    if me == 0:
        print(f"losses within {most.loss:.1e}, gradients within {most.grad:.1e} (relative "
              f"{most.relative:.1e}) of one process", file=sys.stderr)


def main():
    families = sys.argv[1:] or list(SHAPES)
    try:
        import transformers
        assert int(transformers.__version__.split(".")[0]) >= 5, "needs transformers 5"
    except (ImportError, AssertionError) as error:
        print(f"skipped: {error}")
        sys.exit(77)
    for family in families:
        plans = [pair(name, 2, 4, SHAPES[family], expert_parallel=2, **options) for name, options in PLANS]
        results = run_processes(4, work, family, plans)
        expect_success(results)
        print(f"{family}: {len(plans)} plans on 2 ranks x 2 processes with experts: "
              + "; ".join(line for line in results[0][1].splitlines() if "level comm" in line or "within" in line))


if __name__ == "__main__":
    main()
