"""A small MoE model in parts, its exchange over an expert group, its training in one process, and work of given times."""

import torch
import torch.distributed as dist

WIDTH, ROWS = 8, 4  # of an activation of one micro-batch


class Exchange(torch.autograd.Function):
    """An all-to-all of equal parts over a group; None: alone."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return _exchanged(x, group)

    @staticmethod
    def backward(ctx, g):
        return _exchanged(g, ctx.group), None


class TimedInput(torch.autograd.Function):
    """Passes x on; `spend(f)` is its forward and `spend(b)` its backward for the input gradient. spend None: neither."""

    @staticmethod
    def forward(ctx, x, spend, f, b):
        ctx.spend, ctx.b = spend, b
        if spend:
            spend(f)
        return x * 1

    @staticmethod
    def backward(ctx, g):
        if ctx.spend:
            ctx.spend(ctx.b)
        return g, None, None, None


class TimedWeight(torch.autograd.Function):
    """Passes a weight on; `spend(w)` is its backward for the weight gradient. spend None: nothing."""

    @staticmethod
    def forward(ctx, weight, spend, w):
        ctx.spend, ctx.w = spend, w
        return weight * 1

    @staticmethod
    def backward(ctx, g):
        if ctx.spend:
            ctx.spend(ctx.w)
        return g, None, None


def _exchanged(x, group):
    if group is None:
        return x.clone()
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x.contiguous(), group=group)
    return out


def linear(generator):
    layer = torch.nn.Linear(WIDTH, WIDTH)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.rand(p.shape, generator=generator) - 0.5)
    return layer


class Moe(torch.nn.Module):
    """Token t goes to expert t % experts. `expert` is that of this process, None: all are here. With `explicit`
    the exchanges have backwards of their own."""

    def __init__(self, number, expert=None, group=None, experts=2, explicit=False, dropout=0.0):
        super().__init__()
        generator = torch.Generator().manual_seed(number)
        self.a, self.gate = linear(generator), linear(generator)
        every = [linear(generator) for _ in range(experts)]
        self.group, self.count, self.dropout = group, experts, dropout
        self.e = torch.nn.ModuleList(every if expert is None else [every[expert]])
        if explicit:
            self.dispatch, self.combine = self.dispatch_with_handle, self.combine_with_handle
            self.dispatch_backward = lambda handle, g: _exchanged(g, handle)
            self.combine_backward = self._combine_backward

    def attention(self, x, scale=None):
        h = torch.tanh(self.a(x)) if scale is None else torch.tanh(self.a(x)) * scale
        if self.dropout:
            h = torch.nn.functional.dropout(h, self.dropout)
        tokens = torch.cat([h[k::self.count] for k in range(self.count)])  # by expert
        return tokens, x + h, torch.sigmoid(self.gate(h))

    def dispatch(self, tokens):
        return Exchange.apply(tokens, self.group)

    def experts(self, rows):
        parts = zip(self.e, rows.chunk(len(self.e)))
        return torch.cat([torch.relu(e(part)) for e, part in parts])

    def combine(self, rows, h, gate):
        back = Exchange.apply(rows, self.group)
        return h + gate * torch.stack(back.chunk(self.count), 1).flatten(0, 1)

    def dispatch_with_handle(self, tokens):
        return _exchanged(tokens, self.group), self.group

    def combine_with_handle(self, rows, h, gate):
        y = torch.stack(_exchanged(rows, self.group).chunk(self.count), 1).flatten(0, 1)
        return h + gate * y, (gate.detach().clone(), y)

    def _combine_backward(self, handle, g):
        gate, y = handle
        dy = (g * gate).view(-1, self.count, WIDTH)
        return _exchanged(torch.cat(list(dy.unbind(1))), self.group), g, g * y


class Dense(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        generator = torch.Generator().manual_seed(number)
        self.a, self.b = linear(generator), linear(generator)

    def attention(self, x, scale=None):
        h = x + torch.tanh(self.a(x))
        return h, torch.sigmoid(h)

    def mlp(self, h, gate):
        return h + torch.relu(self.b(h)) * gate


class Plain(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        self.a = linear(torch.Generator().manual_seed(number))

    def forward(self, x):
        return x + self.a(x)


def loss_fn(output, target):
    return torch.nn.functional.mse_loss(output, target)


def batch(microbatches, expert=0):
    """Input and target of each micro-batch of a device of the expert group."""
    generator = torch.Generator().manual_seed(90 + expert)
    return tuple(torch.randn(microbatches, ROWS, WIDTH, generator=generator) for _ in range(2))


def layers_of(plan, stage, expert, group, experts, **options):
    """The layers of a stage as the plan has them, by kinds."""
    kinds = plan.stage_layers or ["m" * plan.layers] * plan.stages
    first = sum(map(len, kinds[:stage]))
    make = {"m": lambda n: Moe(n, expert, group, experts, **options), "d": Dense, "p": Plain}
    return [make[kind](first + k) for k, kind in enumerate(kinds[stage])]


def reference(plan, experts, microbatches):
    """Losses by expert and micro-batch, and the model with its gradients, in one process."""
    from contraflow.torch.layers import Layers
    model = Layers([layer for s in range(plan.stages) for layer in layers_of(plan, s, None, None, experts)])
    losses = {}
    for expert in range(experts):
        inputs, targets = batch(microbatches, expert)
        for m in range(microbatches):
            loss = loss_fn(model(inputs[m]), targets[m])
            (loss / microbatches).backward()
            losses[expert, m] = loss.item()
    return losses, model
