"""Decoder layers of Hugging Face's transformers and of torchtitan in parts, with their experts over a group."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import nn

from .all_to_all import Splits, TokenDispatcher, gather, padding
from .island import spread

Tensor = torch.Tensor
Routed = Callable[[Tensor, Tensor, Tensor], Tensor]
_grouped_mm = getattr(nn.functional, "grouped_mm", None)


class _HuggingFace:
    """Names of transformers, and how its modules are called."""

    blocks = ("DeepseekV3DecoderLayer", "GptOssDecoderLayer", "LlamaDecoderLayer", "MistralDecoderLayer",
              "MixtralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer", "Qwen3MoeDecoderLayer")
    mixtures = ("DeepseekV3MoE", "GptOssMLP", "MixtralSparseMoeBlock", "Qwen3MoeSparseMoeBlock")
    norms, attention, networks = ("input_layernorm", "post_attention_layernorm"), "self_attn", ("mlp",)

    @staticmethod
    def attend(layer: nn.Module, attention: Any, x: Tensor, kwargs: Dict[str, Any]) -> Tensor:
        mask = kwargs.get("attention_mask")
        if isinstance(mask, dict):  # by kind of layer
            mask = mask[getattr(layer, "attention_type", None) or attention.layer_type]
        y: Tensor = attention(hidden_states=x, **{**kwargs, "attention_mask": mask})[0]
        return y

    @staticmethod
    def route(moe: Any, x: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        noise = getattr(moe, "jitter_noise", 0.0)
        if noise > 0 and moe.training:
            x = x * torch.empty_like(x).uniform_(1.0 - noise, 1.0 + noise)
        logits, weights, index = (moe.gate if hasattr(moe, "gate") else moe.router)(x)
        return logits, weights, index

    @staticmethod
    def experts_of(moe: Any) -> Any:
        return moe.experts

    @staticmethod
    def compute(experts: Any, rows: Tensor, counts: Optional[Tensor]) -> Tensor:
        group_of = None
        if counts is not None and experts.has_bias:
            local = torch.arange(experts.num_experts, device=rows.device)
            group_of = local.repeat_interleave(counts, output_size=len(rows))

        def product(x: Tensor, name: str) -> Tensor:
            weight: Tensor = getattr(experts, name)
            y = _product(x, weight if experts.is_transposed else weight.transpose(1, 2), counts)
            if not experts.has_bias:
                return y
            bias: Tensor = getattr(experts, name + "_bias")
            if group_of is not None:
                return y + bias[group_of]
            return (y.view(len(bias), -1, y.shape[1]) + bias.unsqueeze(1)).view(y.shape)

        return product(experts._apply_gate(product(rows, "gate_up_proj")), "down_proj")


class _TorchTitan:
    """Names of torchtitan, also of its older releases."""

    blocks = ("DeepSeekV3TransformerBlock", "GptOssTransformerBlock", "Llama3TransformerBlock",
              "Qwen3TransformerBlock")
    mixtures = ("GptOssMoE", "MoE")
    norms, attention, networks = ("attention_norm", "ffn_norm"), "attention", ("moe", "feed_forward")

    @staticmethod
    def attend(layer: nn.Module, attention: Any, x: Tensor, kwargs: Dict[str, Any]) -> Tensor:
        masks = kwargs.get("attention_masks")
        if isinstance(masks, dict) and hasattr(layer, "attn_mask_key"):
            kwargs = {**kwargs, "attention_masks": masks[layer.attn_mask_key]}
        y: Tensor = attention(x, **kwargs)
        return y

    @staticmethod
    def route(moe: Any, x: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        bias = moe.expert_bias_E if hasattr(moe, "expert_bias_E") else moe.expert_bias
        weights, index, scores = moe.router(x, bias)
        seen = moe.tokens_per_expert_E if hasattr(moe, "tokens_per_expert_E") else moe.tokens_per_expert
        if moe.training:
            with torch.no_grad():
                seen.add_(torch.zeros_like(seen).index_add_(0, index.flatten(), torch.ones_like(
                    index, dtype=seen.dtype).flatten()))
        return scores, weights, index

    @staticmethod
    def experts_of(moe: Any) -> Any:
        return moe.routed_experts.inner_experts if hasattr(moe, "routed_experts") else moe.experts

    @staticmethod
    def compute(experts: Any, rows: Tensor, counts: Optional[Tensor]) -> Tensor:
        if counts is None:
            here = len(next(experts.parameters()))
            counts = torch.full((here,), len(rows) // here, device=rows.device)
        y: Tensor = experts(rows, counts)
        return y


_FAMILIES = (_HuggingFace, _TorchTitan)


def _product(rows: Tensor, weights: Tensor, counts: Optional[Tensor]) -> Tensor:
    """Rows by expert [R, in] times the matrix of each expert [e, in, out]: one product, so that its weight gradient
    can wait for W. `counts` [e], None where all have the same."""
    experts, size = weights.shape[:2]
    if counts is None:
        return torch.bmm(rows.view(experts, -1, size), weights).flatten(0, 1)
    if torch.is_autocast_enabled() if rows.is_cuda else torch.is_autocast_cpu_enabled():
        dtype = torch.get_autocast_gpu_dtype() if rows.is_cuda else torch.get_autocast_cpu_dtype()
        rows, weights = rows.to(dtype), weights.to(dtype)
    if _grouped_mm is not None and _can_group(rows, weights):
        grouped: Tensor = _grouped_mm(rows, weights, offs=counts.cumsum(0, dtype=torch.int32))
        return grouped
    most = max(1, int(counts.max()))
    _, slots, takes = padding(counts, len(rows), most)
    y = torch.bmm(gather(rows, takes, slots, True).view(experts, most, size), weights).flatten(0, 1)
    return gather(y, slots, takes, True)


def _can_group(rows: Tensor, weights: Tensor) -> bool:
    aligned = all(n * rows.element_size() % 16 == 0 for n in weights.shape[1:])
    fast = not rows.is_cuda or torch.cuda.get_device_capability(rows.device) >= (8, 0)
    return aligned and fast and rows.dtype in (torch.float32, torch.bfloat16, torch.float16)


class DenseBlock(nn.Module):
    """A decoder layer in two parts, see DenseLayer. Its modules have the names that they have in `layer`."""

    def __init__(self, layer: nn.Module, family: Any):
        super().__init__()
        self._modules.update(layer.named_children())
        self.train(layer.training)
        self._family = family
        for name in ("attention_type", "attn_mask_key"):
            if hasattr(layer, name):
                setattr(self, name, getattr(layer, name))
        # Modules may have the names of parts, so that attributes do not find them.
        before, after = family.norms
        network = next(name for name in family.networks if name in self._modules)
        self._names = before, family.attention, after, network

    def attention(self, x: Tensor, **kwargs: Any) -> Any:
        """x [.., D] -> x and what attention adds to it."""
        norm, attention, _, _ = self._parts()
        return x + self._family.attend(self, attention, norm(x), kwargs)

    def mlp(self, h: Tensor) -> Tensor:
        _, _, norm, network = self._parts()
        y: Tensor = h + network(norm(h))
        return y

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        return self.mlp(self.attention(x, **kwargs))

    def _parts(self) -> List[Any]:
        return [self._modules[name] for name in self._names]


class MoEBlock(DenseBlock):
    """A decoder layer in four parts, see MoELayer. This process holds its slice of the experts alone."""

    mlp = None  # type: ignore[assignment]

    def __init__(self, layer: nn.Module, family: Any, group: Any, capacity: Optional[int], routed: Optional[Routed]):
        super().__init__(layer, family)
        self._experts = (family.experts_of(self._parts()[3]),)  # a tuple: no module of this one
        experts = self._experts[0]
        self.dispatcher = TokenDispatcher(experts.num_experts, group, capacity)
        self.expert_group = group if self.dispatcher.exchange.size > 1 else None
        self.routed = routed
        here, begin = self.dispatcher.here, self.dispatcher.exchange.rank * self.dispatcher.here
        if self.expert_group is not None:
            for name, p in list(experts.named_parameters(recurse=False)):
                own = nn.Parameter(p.detach()[begin:begin + here].clone(), p.requires_grad)
                experts.register_parameter(name, own)
            experts.num_experts = here

    def expert_parameters(self) -> List[nn.Parameter]:
        """Parameters of the experts that this process has."""
        return list(self._experts[0].parameters())

    def attention(self, x: Tensor, **kwargs: Any) -> Any:
        """x [.., D] -> ((rows, counts), h, weights, slots, takes, and the output of shared experts)."""
        h = super().attention(x, **kwargs)
        _, _, norm, moe = self._parts()
        tokens = norm(h).reshape(-1, h.shape[-1])
        logits, weights, index = self._family.route(moe, tokens)
        if self.routed is not None:
            weights = self.routed(logits, weights, index)
        rows, counts, slots, takes = self.dispatcher.prepare(tokens, index)
        shared = getattr(moe, "shared_experts", None)
        beside = () if shared is None else (shared(tokens).view(h.shape),)
        return ((rows, counts), h, weights, slots, takes, *beside)

    def dispatch(self, rows: Tensor, counts: Tensor) -> Any:
        return self.dispatcher.dispatch(rows, counts)

    def experts(self, rows: Tensor, received: Optional[Tensor], splits: Splits) -> Any:
        grouped, counts, regrouped = self.dispatcher.regroup(rows, received)
        made = self._family.compute(self._experts[0], grouped, counts)
        return self.dispatcher.ungroup(made, regrouped), splits

    def combine(self, rows: Tensor, splits: Splits, h: Tensor, weights: Tensor, slots: Tensor, takes: Tensor,
                *shared: Tensor) -> Tensor:
        y = self.dispatcher.combine(rows, splits, weights, slots, takes).view(h.shape)
        for beside in shared:
            y = y + beside
        return h + y

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        tokens, *kept = self.attention(x, **kwargs)
        return self.combine(*spread(self.experts(*self.dispatch(*tokens))), *kept)


def from_moe_block(layer: nn.Module, group: Any = None, capacity: Optional[int] = None,
                   routed: Optional[Routed] = None) -> DenseBlock:
    """A decoder layer of transformers (DeepSeek-V3, GPT-OSS, Llama, Mistral, Mixtral, Qwen2, Qwen3, Qwen3-MoE) or of
    torchtitan (DeepSeek-V3, GPT-OSS, Llama 3, Qwen3) in the parts that plans of level component run. It takes the
    modules of `layer` over and cuts the experts among them.

    group      the processes that share the experts of this layer, each with the same ones elsewhere: process p of
               P keeps those from p E / P on (None: all are here)
    capacity   how many rows of one process an expert takes (None: all), see TokenDispatcher
    routed     routed(logits [T, E], weights [T, K], index [T, K]) -> weights: what else is done with a routing, such
               as a loss that balances the experts. With torchtitan the first is what its router returns last
    """
    name = type(layer).__name__
    remedy = "write the four parts yourself, see contraflow.torch.layers.MoELayer"
    family: Any = next((f for f in _FAMILIES if name in f.blocks), None)
    if family is None:
        known = ", ".join(block for f in _FAMILIES for block in f.blocks)
        raise ValueError(f"from_moe_block does not know {name}, only {known}: {remedy}")
    if getattr(layer, "gradient_checkpointing", False):
        raise ValueError(f"{name} has gradient checkpointing on, which is of whole layers: turn it off, and compile "
                         "the plan with recompute=")
    other = next((n for n, p in layer.named_parameters() if hasattr(p, "device_mesh")), None)
    if other is not None:
        raise ValueError(f"{name} is parallelized already ({other} is a DTensor): give it before that")
    network = next(m for n, m in layer.named_children() if n in family.networks)
    kind = type(network).__name__
    if kind not in family.mixtures and not any(hasattr(network, n) for n in ("experts", "routed_experts")):
        return DenseBlock(layer, family)
    if kind not in family.mixtures or getattr(network, "score_before_experts", False):
        what = "score_before_experts" if kind in family.mixtures else "the experts"
        raise ValueError(f"from_moe_block does not know {what} of the {kind} in {name}: {remedy}")
    return MoEBlock(layer, family, group, capacity, routed)
