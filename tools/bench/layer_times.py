"""Times and memory of decoder layers in plain PyTorch on one GPU, to hold against `contraflow costs init`.

    python3 tools/bench/layer_times.py [--only REGEX] [--seconds N] [--small] [--json FILE]

Prints a JSON object a line: of each layer its shapes, ms of F (forward), B (input gradient only) and W (weight gradient
only, the backward less B), and bytes that it keeps between F and the backward. Then the share of the GPU's dense bf16
or fp8 rate that each product of the layer reaches. Times are medians of CUDA events, each of `REPEATS` passes in a row.
Weights and activations are bf16, sums in fp32. `--small` runs tiny shapes on any device, to try the program.
"""

import argparse
import json
import re
import statistics
import sys
import time
import traceback
from dataclasses import dataclass, field

import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

REPEATS, WARM_SECONDS = 7, 0.4


@dataclass
class Shape:
    """A layer on one device: its tokens, and its share of heads and inner width."""

    sequence: int
    batch: int
    width: int
    heads: int
    kv_heads: int
    head: int
    inner: int  # of the MLP, or of an expert
    experts: int = 0  # all of them on this device; 0: a dense MLP
    top_k: int = 0
    qk_norm: bool = False
    latent: dict = field(default_factory=dict)  # MLA: q_rank, kv_rank, rope, nope, value
    rows: int = 0  # rows of the experts, where other devices send them; 0: tokens x top_k
    shared: int = 0  # inner width of the shared expert

    @property
    def tokens(self):
        return self.sequence * self.batch


SHAPES = {
    "llama-3-8b seq 8192": Shape(8192, 1, 4096, 32, 8, 128, 14336),
    "llama-3-70b tp4 seq 8192": Shape(8192, 1, 8192, 16, 2, 128, 7168),
    "llama-3-8b seq 2048": Shape(2048, 1, 4096, 32, 8, 128, 14336),
    "mixtral-8x7b seq 4096": Shape(4096, 1, 4096, 32, 8, 128, 14336, experts=8, top_k=2),
    "qwen3-30b-a3b seq 4096": Shape(4096, 2, 2048, 32, 4, 128, 768, experts=128, top_k=8, qk_norm=True),
    "deepseek-v3 ep64 seq 4096": Shape(4096, 1, 7168, 128, 128, 192, 2048, experts=4, top_k=8, rows=32768, shared=2048,
                                       latent=dict(q_rank=1536, kv_rank=512, rope=64, nope=128, value=128)),
}
SMALL = {
    "dense": Shape(64, 1, 64, 4, 2, 16, 128),
    "moe": Shape(64, 2, 64, 4, 4, 16, 32, experts=4, top_k=2, qk_norm=True),
    "latent": Shape(64, 1, 64, 4, 4, 24, 32, experts=4, top_k=2, rows=64, shared=32,
                    latent=dict(q_rank=32, kv_rank=16, rope=8, nope=16, value=16)),
}


def weight(*shape):
    return nn.Parameter(torch.randn(*shape) * shape[-1] ** -0.5)


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        s, self.shape = shape, shape
        self.norm = nn.RMSNorm(s.width)
        self.qkv = weight((s.heads + 2 * s.kv_heads) * s.head, s.width)
        self.out = weight(s.width, s.heads * s.head)
        if s.qk_norm:
            self.q_norm, self.k_norm = nn.RMSNorm(s.head), nn.RMSNorm(s.head)
        angle = torch.outer(torch.arange(s.sequence), 10000.0 ** -(torch.arange(0, s.head, 2) / s.head)).repeat(1, 2)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, x):
        s = self.shape
        q, k, v = F.linear(self.norm(x), self.qkv).split(
            [s.heads * s.head, s.kv_heads * s.head, s.kv_heads * s.head], dim=-1)
        q, k, v = (part.unflatten(-1, (-1, s.head)) for part in (q, k, v))
        if s.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        q, k = rotate(q, self.cos, self.sin), rotate(k, self.cos, self.sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=s.heads != s.kv_heads)
        return x + F.linear(y.transpose(1, 2).flatten(2), self.out)


class LatentAttention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        s, m, self.shape = shape, shape.latent, shape
        self.norm, self.q_norm, self.kv_norm = nn.RMSNorm(s.width), nn.RMSNorm(m["q_rank"]), nn.RMSNorm(m["kv_rank"])
        self.q_down = weight(m["q_rank"], s.width)
        self.q_up = weight(s.heads * (m["nope"] + m["rope"]), m["q_rank"])
        self.kv_down = weight(m["kv_rank"] + m["rope"], s.width)
        self.kv_up = weight(s.heads * (m["nope"] + m["value"]), m["kv_rank"])
        self.out = weight(s.width, s.heads * m["value"])
        angle = torch.outer(torch.arange(s.sequence), 10000.0 ** -(torch.arange(0, m["rope"], 2) / m["rope"]))
        self.register_buffer("cos", angle.repeat(1, 2).cos())
        self.register_buffer("sin", angle.repeat(1, 2).sin())

    def forward(self, x):
        s, m = self.shape, self.shape.latent
        h = self.norm(x)
        q = F.linear(self.q_norm(F.linear(h, self.q_down)), self.q_up).unflatten(-1, (s.heads, -1)).transpose(1, 2)
        latent, rope = F.linear(h, self.kv_down).split([m["kv_rank"], m["rope"]], dim=-1)
        kv = F.linear(self.kv_norm(latent), self.kv_up).unflatten(-1, (s.heads, -1)).transpose(1, 2)
        k, v = kv.split([m["nope"], m["value"]], dim=-1)
        q, q_rope = q.split([m["nope"], m["rope"]], dim=-1)
        rope = rotate(rope.unsqueeze(1), self.cos, self.sin).expand(-1, s.heads, -1, -1)
        q = torch.cat((q, rotate(q_rope, self.cos, self.sin)), dim=-1)
        y = F.scaled_dot_product_attention(q, torch.cat((k, rope), dim=-1), v, is_causal=True)
        return x + F.linear(y.transpose(1, 2).flatten(2), self.out)


class Mlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.norm = nn.RMSNorm(shape.width)
        self.up, self.down = weight(2 * shape.inner, shape.width), weight(shape.width, shape.inner)

    def forward(self, x):
        gate, up = F.linear(self.norm(x), self.up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down)


class Experts(nn.Module):
    """Rows are sorted by expert; where other devices send rows, these stand for them."""

    def __init__(self, shape):
        super().__init__()
        s, self.shape = shape, shape
        self.norm = nn.RMSNorm(s.width)
        self.router = weight(s.experts, s.width)
        self.up = nn.Parameter(torch.randn(s.experts, s.width, 2 * s.inner) * s.width ** -0.5)
        self.down = nn.Parameter(torch.randn(s.experts, s.inner, s.width) * s.inner ** -0.5)
        if s.shared:
            self.shared_up, self.shared_down = weight(2 * s.shared, s.width), weight(s.width, s.shared)

    def forward(self, x):
        s = self.shape
        h = self.norm(x).flatten(0, 1)
        scores, chosen = F.linear(h, self.router).float().softmax(-1).topk(min(s.top_k, s.experts), dim=-1)
        if s.rows:
            chosen = torch.arange(s.rows, device=h.device).view(s.tokens, -1) % s.experts
            scores = scores.mean(-1, keepdim=True).expand(-1, chosen.shape[1])
        order = chosen.flatten().argsort(stable=True)
        ends = chosen.flatten().bincount(minlength=s.experts).cumsum(0).to(torch.int32)
        rows = h.index_select(0, order // chosen.shape[1])
        gate, up = grouped(rows, self.up, ends).chunk(2, dim=-1)
        rows = grouped(F.silu(gate) * up, self.down, ends)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        y = (rows.index_select(0, back).view(s.tokens, -1, s.width) * scores.unsqueeze(-1).to(rows.dtype)).sum(1)
        if s.shared:
            gate, up = F.linear(h, self.shared_up).chunk(2, dim=-1)
            y = y + F.linear(F.silu(gate) * up, self.shared_down)
        return x + y.view_as(x)


def grouped(rows, weights, ends):
    if rows.is_cuda:
        return torch._grouped_mm(rows, weights, offs=ends)
    begins = [0, *ends.tolist()]
    return torch.cat([rows[a:b] @ w for a, b, w in zip(begins, begins[1:], weights)])


def halves_of(shape):
    return {"attention": LatentAttention(shape) if shape.latent else Attention(shape),
            "mlp": Experts(shape) if shape.experts else Mlp(shape)}


def median_ms(run, device, repeats=REPEATS):
    """Milliseconds of one call, on a GPU that is warm."""
    if device.type != "cuda":
        begin = time.perf_counter()
        run()
        return (time.perf_counter() - begin) * 1e3
    end = time.monotonic() + WARM_SECONDS
    while time.monotonic() < end:
        run()
        torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in zip(events, events[1:]))


def measure_half(half, shape, device, split):
    """F, B and W in ms, and the bytes that stay after F, its result among them. Without `split` the backward is whole:
    compiled graphs compute all gradients at once."""
    x = torch.randn(shape.batch, shape.sequence, shape.width, device=device, dtype=torch.bfloat16).requires_grad_()
    weights = list(half.parameters())
    y = half(x)
    g = torch.randn_like(y)
    del y
    allocated = torch.cuda.memory_allocated if device.type == "cuda" else lambda: 0
    before = allocated()
    y = half(x)
    kept = allocated() - before
    b = median_ms(lambda: torch.autograd.grad(y, x, g, retain_graph=True), device) if split else None
    both = median_ms(lambda: torch.autograd.grad(y, [x, *weights], g, retain_graph=True), device)
    del y
    f = median_ms(lambda: half(x), device)
    backward = {"B": round(b, 4), "W": round(both - b, 4)} if split else {"BW": round(both, 4)}
    return {"F": round(f, 4), **backward, "kept_bytes": kept, "output_bytes": x.numel() * 2}


def products_of(s):
    """{name: (rows, inputs, outputs)} of the matrices of a layer."""
    if s.latent:
        m = s.latent
        made = {"q_down": (s.tokens, s.width, m["q_rank"]),
                "q_up": (s.tokens, m["q_rank"], s.heads * (m["nope"] + m["rope"])),
                "kv_down": (s.tokens, s.width, m["kv_rank"] + m["rope"]),
                "kv_up": (s.tokens, m["kv_rank"], s.heads * (m["nope"] + m["value"])),
                "out": (s.tokens, s.heads * m["value"], s.width)}
    else:
        made = {"qkv": (s.tokens, s.width, (s.heads + 2 * s.kv_heads) * s.head),
                "out": (s.tokens, s.heads * s.head, s.width)}
    if not s.experts:
        made.update(up=(s.tokens, s.width, 2 * s.inner), down=(s.tokens, s.inner, s.width))
    return made


def random(*shape, device):
    return torch.randn(*shape, device=device, dtype=torch.bfloat16)


def matmul_rates(rows, inputs, outputs, device):
    """TFLOP/s of F, B and W in bf16, and of F in fp8 with one scale a tensor, casts not counted."""
    x, w, g = random(rows, inputs, device=device), random(outputs, inputs, device=device), random(rows, outputs,
                                                                                                 device=device)
    flops = 2e-9 * rows * inputs * outputs
    made = {"F": flops / median_ms(lambda: x @ w.t(), device), "B": flops / median_ms(lambda: g @ w, device),
            "W": flops / median_ms(lambda: g.t() @ x, device)}
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9):
        one = torch.ones((), device=device)
        x8, w8 = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn)
        made["F fp8"] = flops / median_ms(
            lambda: torch._scaled_mm(x8, w8.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True), device)
    return {name: round(rate, 1) for name, rate in made.items()}


def grouped_rates(rows, experts, inputs, outputs, device):
    x, g = random(rows, inputs, device=device), random(rows, outputs, device=device)
    w = random(experts, inputs, outputs, device=device)
    ends = torch.arange(1, experts + 1, device=device, dtype=torch.int32) * (rows // experts)
    flops = 2e-9 * rows * inputs * outputs
    made = {"F": lambda: torch._grouped_mm(x, w, offs=ends),
            "B": lambda: torch._grouped_mm(g, w.transpose(-2, -1), offs=ends),
            "W": lambda: torch._grouped_mm(x.t(), g, offs=ends)}
    return {name: round(flops / median_ms(run, device), 1) for name, run in made.items()}


def attention_rates(s, device):
    """TFLOP/s of causal attention, half of the products counted, by each of torch's backends."""
    value = s.latent["value"] if s.latent else s.head
    q = random(s.batch, s.heads, s.sequence, s.head, device=device).requires_grad_()
    k = random(s.batch, s.kv_heads, s.sequence, s.head, device=device).requires_grad_()
    v = random(s.batch, s.kv_heads, s.sequence, value, device=device).requires_grad_()
    flops = 1e-9 * s.batch * s.heads * s.sequence ** 2 * (s.head + value)
    made = {}
    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        try:
            with sdpa_kernel(backend):
                def forward():
                    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=s.heads != s.kv_heads)
                y = forward()
                g = torch.randn_like(y)
                made[f"{name} F"] = round(flops / median_ms(forward, device), 1)
                made[f"{name} B"] = round(2.5 * flops / median_ms(
                    lambda: torch.autograd.grad(y, [q, k, v], g, retain_graph=True), device), 1)
        except RuntimeError as error:
            made[name] = str(error).split("\n")[0][:80]
    return made


def head_rates(tokens, width, vocabulary, device):
    """TFLOP/s of the product with a vocabulary, and TB/s of the loss in torch, forward and backward."""
    made = matmul_rates(tokens, width, vocabulary, device)
    logits = random(tokens, vocabulary, device=device).requires_grad_()
    target = torch.randint(vocabulary, (tokens,), device=device)

    def loss():
        return F.cross_entropy(logits.float(), target)
    made["loss F ms"] = round(median_ms(loss, device), 3)
    y = loss()
    made["loss B ms"] = round(median_ms(lambda: torch.autograd.grad(y, logits, retain_graph=True), device), 3)
    return made


def copy_rate(device):
    source = torch.randn(2 ** 28, device=device)
    target = torch.empty_like(source)
    return round(2 * source.nbytes / median_ms(lambda: target.copy_(source), device) / 1e9, 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="measurements whose names this regular expression matches")
    parser.add_argument("--seconds", type=float, default=240, help="begin no measurement after so many")
    parser.add_argument("--small", action="store_true", help="tiny shapes, on the CPU where there is no GPU")
    parser.add_argument("--json", help="a file that gets each line, too")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() and not arguments.small:
        print("SKIP: torch has no GPU")
        sys.exit(77)
    torch._functorch.config.donated_buffer = False  # backwards are repeated
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    shapes, failed, began = SMALL if arguments.small else SHAPES, 0, time.monotonic()

    def say(name, make):
        nonlocal failed
        if not re.search(arguments.only, name):
            return
        if time.monotonic() - began > arguments.seconds:
            found = {"skipped": f"no time left of {arguments.seconds:g} s"}
        else:
            try:
                found = make()
            except Exception as error:  # the next measurement goes on
                traceback.print_exc()
                failed, found = failed + 1, {"error": str(error).split("\n")[0][:200]}
        line = json.dumps({"measured": name, **found})
        print(line, flush=True)
        if arguments.json:
            with open(arguments.json, "a") as file:
                file.write(line + "\n")

    def half(name, part, shape, compiled):
        torch.manual_seed(0)
        made = halves_of(shape)[part].to(device, torch.bfloat16)
        return measure_half(torch.compile(made) if compiled else made, shape, device, not compiled)

    say("GPU", lambda: {"name": torch.cuda.get_device_name(), "torch": torch.__version__} if device.type == "cuda"
        else {"name": "none", "torch": torch.__version__})
    if not arguments.small:
        say("copy, TB/s", lambda: {"rate": copy_rate(device)})
    for compiled in (False, True):
        if compiled and arguments.small:
            continue
        for name, shape in shapes.items():
            for part in ("attention", "mlp"):
                say(f"{'compiled' if compiled else 'eager'} {name} {part}",
                    lambda part=part, shape=shape, compiled=compiled: half(name, part, shape, compiled))
                if device.type == "cuda":
                    torch.cuda.empty_cache()
        if compiled or arguments.small:
            continue
        for name, shape in shapes.items():
            say(f"attention rate {name}", lambda shape=shape: attention_rates(shape, device))
            if shape.experts:
                rows = shape.rows or shape.tokens * shape.top_k
                say(f"experts up rate {name}", lambda rows=rows, s=shape: grouped_rates(
                    rows, s.experts, s.width, 2 * s.inner, device))
                say(f"experts down rate {name}", lambda rows=rows, s=shape: grouped_rates(
                    rows, s.experts, s.inner, s.width, device))
            for product, sizes in products_of(shape).items():
                say(f"matmul {product} rate {name}", lambda sizes=sizes: matmul_rates(*sizes, device))
        say("head rate llama-3", lambda: head_rates(8192, 4096, 128256, device))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
