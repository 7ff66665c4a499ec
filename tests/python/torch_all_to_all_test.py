"""AllToAll and TokenDispatcher over gloo: uneven splits, experts without rows, capacity, gradients, against one
process; blocks of torchtitan's form in parts; and gradients of plans over an expert group."""

import sys
import threading
import unittest.mock

from torch_layers import batch as layer_batch
from torch_layers import layers_of, loss_fn, reference
from torch_model import dist, expect_success, rows_of, run_processes, torch

import contraflow as cf
from contraflow.torch import AllToAll, Links, PlanSchedule, TokenDispatcher, from_moe_block
from contraflow.torch.layers import Layers
from contraflow.torch.moe_blocks import _product

WIDTH, EXPERTS, K = 8, 6, 2
ROWS = [[0, 3, 1], [2, 0, 0], [0, 1, 4]]  # that process i sends to process j


def exchanges(me, size):
    everyone, alone = AllToAll(dist.group.WORLD), AllToAll()
    for kind in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        send, receive = ROWS[me], [ROWS[other][me] for other in range(size)]
        counts, splits = everyone.splits_of(torch.tensor([[n] for n in send]))
        assert counts.flatten().tolist() == receive and splits == (send, receive)
        values = torch.arange(sum(send), dtype=kind) + 10 * me
        x = values.unsqueeze(1).expand(-1, 3).clone().requires_grad_()
        y = everyone(x, splits)
        expected = [10 * other + sum(ROWS[other][:me]) + k for other in range(size) for k in range(ROWS[other][me])]
        assert y[:, 0].tolist() == expected and y.dtype == kind, (y, expected)
        y.backward(y.detach() * 2)  # each row comes back, doubled
        assert torch.equal(x.grad, 2 * x.detach())
        even = everyone(torch.full((size, 2), float(me)))
        assert even[:, 0].tolist() == list(range(size))
        assert alone(x, splits) is x and alone.splits_of(torch.ones(1, 2))[1] is None
    try:
        everyone(torch.ones(size + 1, 2))
    except ValueError as error:
        assert "4 rows do not divide among 3 processes" in str(error), error
    else:
        raise AssertionError("not refused")


def tokens_of(process):
    """Tokens of a process, their experts and weights; expert 4 gets nothing, expert 1 most."""
    generator = torch.Generator().manual_seed(process)
    count = 3 + 4 * process
    x = torch.randn(count, WIDTH, generator=generator)
    chance = torch.tensor([1.0, 6.0, 1.0, 2.0, 0.0, 1.0]).expand(count, EXPERTS)
    index = torch.multinomial(chance, K, generator=generator)
    return x, index, torch.rand(count, K, generator=generator)


def scales():
    return torch.arange(1.0, EXPERTS * WIDTH + 1).view(EXPERTS, WIDTH) / 7


def routed(dispatcher, scale, x, index, weights):
    """A mixture of experts that scale their rows."""
    rows, counts, slots, takes = dispatcher.prepare(x, index)
    rows, received, splits = dispatcher.dispatch(rows, counts)
    rows, counts, regrouped = dispatcher.regroup(rows, received)
    if counts is None:
        made = (rows.view(len(scale), -1, WIDTH) * scale.unsqueeze(1)).view(rows.shape)
    else:
        made = torch.cat([part * s for part, s in zip(rows.split(counts.tolist()), scale)])
    return dispatcher.combine(dispatcher.ungroup(made, regrouped), splits, weights, slots, takes)


def results_of(dispatcher, scale, process):
    x, index, weights = tokens_of(process)
    x.requires_grad_()
    weights.requires_grad_()
    y = routed(dispatcher, scale, x, index, weights)
    y.backward(torch.cos(y.detach()))
    return y.detach(), x.grad, weights.grad


def by_hand(scale, process, capacity):
    """The same, token by token: an expert takes its first `capacity` tokens."""
    x, index, weights = tokens_of(process)
    taken, rows = [0] * EXPERTS, []
    for token in range(len(x)):
        y = torch.zeros(WIDTH)
        for k in range(K):
            expert = int(index[token, k])
            taken[expert] += 1
            if taken[expert] <= capacity:
                y = y + x[token] * scale[expert] * weights[token, k]
        rows.append(y)
    return torch.stack(rows)


def dispatches(me, size):
    here = EXPERTS // size
    for capacity in (None, 100, 3):
        whole, scale = TokenDispatcher(EXPERTS, None, capacity), scales().requires_grad_()
        expected = [results_of(whole, scale, process) for process in range(size)]
        part = scales()[me * here:(me + 1) * here].clone().requires_grad_()
        got = results_of(TokenDispatcher(EXPERTS, dist.group.WORLD, capacity), part, me)
        for one, other in zip(got, expected[me]):
            assert torch.equal(one, other), (capacity, one - other)
        assert (part.grad - scale.grad[me * here:(me + 1) * here]).abs().max() <= 1e-5
        hand = by_hand(scales(), me, capacity or 100)
        assert (got[0] - hand).abs().max() <= 1e-5, (capacity, got[0] - hand)
        if capacity == 3 and me == 2:  # expert 1 is full: some tokens get less
            assert not torch.equal(got[0], results_of(TokenDispatcher(EXPERTS), scales(), me)[0])
    for arguments, text in (((4, dist.group.WORLD), "4 experts do not divide among the 3 processes"),
                            ((6, None, 0), "capacity is 0"), ((6, None, 1.25), "capacity is 1.25")):
        try:
            TokenDispatcher(*arguments)
        except ValueError as error:
            assert text in str(error), error
        else:
            raise AssertionError("not refused: " + text)


def products(me, _):
    """Rows times the matrix of their expert, also where torch has no product of groups: here, of odd sizes."""
    for size, out in ((8, 12), (7, 5)):
        for counts in ([2, 0, 5, 1], [0, 0, 0, 0], [3, 3, 3, 3]):
            rows, weights = torch.randn(sum(counts), size), torch.randn(4, size, out)
            expected = torch.cat([part @ w for part, w in zip(rows.split(counts), weights)])
            grad = torch.randn(expected.shape)
            given = [None] if counts == [3, 3, 3, 3] else []
            for count in (torch.tensor(counts), *given):
                x, w = rows.clone().requires_grad_(), weights.clone().requires_grad_()
                y = _product(x, w, count)
                y.backward(grad)
                assert (y - expected).abs().max() <= 1e-5 if len(rows) else y.shape == expected.shape
                for at, (part, of) in enumerate(zip(rows.split(counts), grad.split(counts))):
                    assert (w.grad[at] - part.t() @ of).abs().max() <= 1e-5, (size, counts, at)
                right = torch.cat([of @ w.t() for of, w in zip(grad.split(counts), weights)])
                assert x.grad.shape == rows.shape and torch.allclose(x.grad, right, atol=1e-5)


# Modules of the form that torchtitan's have


class Router(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(WIDTH, EXPERTS, bias=False)

    def forward(self, x, bias):
        scores = torch.sigmoid(self.gate(x))
        index = torch.topk(scores + bias, K, dim=-1, sorted=False)[1]
        return scores.gather(1, index), index, scores


class GroupedExperts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.num_experts = EXPERTS
        self.w1 = torch.nn.Parameter(torch.randn(EXPERTS, 12, WIDTH) / 3)
        self.w2 = torch.nn.Parameter(torch.randn(EXPERTS, WIDTH, 12) / 3)

    def forward(self, x, counts):
        assert len(counts) == self.num_experts == len(self.w1)
        return torch.cat([torch.relu(part @ w1.t()) @ w2.t() for part, w1, w2 in
                          zip(x.split(counts.tolist()), self.w1, self.w2)])


class MoE(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.experts, self.router, self.shared_experts = GroupedExperts(), Router(), torch.nn.Linear(WIDTH, WIDTH)
        self.score_before_experts = False
        self.register_buffer("expert_bias", torch.linspace(0, 0.3, EXPERTS))
        self.register_buffer("tokens_per_expert", torch.zeros(EXPERTS))


class Attention(torch.nn.Linear):
    def forward(self, x, attention_masks, positions=None):
        return super().forward(x) * attention_masks


class Qwen3TransformerBlock(torch.nn.Module):
    def __init__(self, dense=False):
        super().__init__()
        self.attention = Attention(WIDTH, WIDTH)
        self.attention_norm, self.ffn_norm = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        if dense:
            self.feed_forward = torch.nn.Linear(WIDTH, WIDTH)
        else:
            self.moe = MoE()

    def one_by_one(self, x, mask):
        """The same as torchtitan's block, token by token."""
        h = x + self.attention(self.attention_norm(x), mask)
        tokens, moe = self.ffn_norm(h).reshape(-1, WIDTH), self.moe
        weights, index, _ = moe.router(tokens, moe.expert_bias)
        rows = [sum(weights[t, k] * (moe.experts.w2[e] @ torch.relu(moe.experts.w1[e] @ tokens[t]))
                    for k, e in enumerate(index[t].tolist())) for t in range(len(tokens))]
        return h + (torch.stack(rows) + moe.shared_experts(tokens)).view(h.shape)


def titan_block(seed, **options):
    torch.manual_seed(seed)
    return Qwen3TransformerBlock(**options)


def titan(me, size):
    inputs = [torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(p)) for p in range(size)]
    whole = titan_block(3)
    for x in inputs:
        y = whole.one_by_one(x, 0.5)
        y.backward(torch.sin(y.detach()))
        if x is inputs[me]:
            expected = y.detach()
    grads = {name: p.grad for name, p in whole.named_parameters()}
    seen = []

    def keep(logits, weights, index):
        seen.append((logits.shape, index))
        return weights

    for capacity in (None, 20):
        block = from_moe_block(titan_block(3), dist.group.WORLD, capacity, routed=keep)
        y = block(inputs[me], attention_masks=0.5)
        assert (y - expected).abs().max() <= 1e-5
        y.backward(torch.sin(y.detach()))
        spread = {id(p) for p in block.expert_parameters()}
        assert len(spread) == 2 and block.state_dict().keys() == whole.state_dict().keys()
        for name, p in block.named_parameters():
            assert (id(p) in spread) == (".experts." in name)
            right = grads[name].chunk(size)[me] if id(p) in spread else grads[name]
            if id(p) not in spread:
                dist.all_reduce(p.grad)
            assert (p.grad - right).abs().max() <= 1e-5, (name, capacity)
        shape, index = seen[-1]
        assert shape == (10, EXPERTS)
        counted = block._modules["moe"].tokens_per_expert
        assert torch.equal(counted, torch.bincount(index.flatten(), minlength=EXPERTS).to(counted))
    dense = from_moe_block(titan_block(4, dense=True))
    assert not hasattr(dense, "dispatch") and dense(inputs[0], attention_masks=1.0).shape == inputs[0].shape
    for change, text in ((lambda b: b, "does not know Other"),
                         (lambda b: setattr(b.moe, "score_before_experts", True), "score_before_experts of the MoE"),
                         (lambda b: setattr(b, "gradient_checkpointing", True), "compile the plan with recompute="),
                         (lambda b: setattr(b.moe, "__class__", type("Odd", (MoE,), {})), "the experts of the Odd")):
        block = titan_block(3)
        change(block)
        if text.endswith("Other"):
            block.__class__ = type("Other", (Qwen3TransformerBlock,), {})
        try:
            from_moe_block(block)
        except ValueError as error:
            assert text in str(error), (text, error)
        else:
            raise AssertionError("not refused: " + text)


# Plans


def plan_of(name, level, ranks=2, **options):
    costs = {"unit": "ms", "moe": {"layers_per_stage": 2, "attn_f": 4, "attn_b": 4, "attn_w": 2, "mlp_f": 4, "mlp_b": 4,
                                   "mlp_w": 2, "dispatch_f": 2, "combine_f": 2, "dispatch_b": 2, "combine_b": 2}}
    return cf.compile(name, ranks=ranks, microbatches=4, costs=costs, level=level, expert_parallel=2, **options)


def plans(me, _):
    rank, expert = divmod(me, 2)
    pipelines = [dist.new_group([e, 2 + e]) for e in range(2)]
    groups = [dist.new_group([2 * r, 2 * r + 1]) for r in range(2)]
    group = groups[rank]
    for plan in (plan_of("dualpipe", "component", overlap="all"), plan_of("dualpipe", "comm"), plan_of("zb-v", "comm")):
        shape = plan_of(plan.schedule, "component")
        stages = {s: layers_of(shape, s, expert, group, 2) for s in plan.stages_of(rank)}
        for layers in stages.values():
            for layer in layers:
                for p in layer.e.parameters():
                    p.expert = True
                if me == 1:  # all but the experts come from the first process
                    layer.a.weight.data.zero_()
        schedule = PlanSchedule(plan, stages, loss_fn, pipelines[expert], expert_parallel=group)
        schedule.sync_parameters()
        inputs, targets = layer_batch(plan.microbatches, expert)
        x, target = rows_of(plan, rank, 0, inputs), rows_of(plan, rank, plan.stages - 1, targets)
        schedule.step(*([] if x is None else [x]), target=target)
        _, model = reference(shape, 2, plan.microbatches)
        of_layers = list(model)
        for s, layers in stages.items():
            for k, layer in enumerate(layers):
                right = dict(of_layers[2 * s + k].named_parameters())
                for name, p in layer.named_parameters():
                    spread = name.startswith("e.")
                    assert schedule.is_spread(p) == spread
                    grad = right[name.replace("e.0", f"e.{expert}")].grad / 2
                    assert (p.grad - grad).abs().max() <= 1e-6, (plan.schedule, plan.level, s, name)
        squares = sum((p.grad / 2).double().pow(2).sum().item() for p in model.parameters())
        assert abs(schedule.clip_grad_norm_(0.1).item() - squares ** 0.5) <= 1e-5 * squares ** 0.5
        schedule.close()
    refusals(me, pipelines[expert], groups)


def replicas(me, _):
    """One rank, two processes with an expert each, two replicas of these."""
    replica, expert = divmod(me, 2)
    alone = [dist.new_group([process]) for process in range(4)][me]
    group = [dist.new_group([2 * d, 2 * d + 1]) for d in range(2)][replica]
    copies = [dist.new_group([e, 2 + e]) for e in range(2)][expert]
    plan = plan_of("1f1b", "component", ranks=1)
    layers, whole = (layers_of(plan, 0, at, of, 2) for at, of in ((expert, group), (None, None)))
    for layer in layers:
        layer.expert_parameters = layer.e.parameters
    schedule = PlanSchedule(plan, {0: layers}, loss_fn, alone, data_parallel=copies, expert_parallel=group)
    for process in range(4):
        inputs, targets = layer_batch(plan.microbatches, process)
        if process == me:
            schedule.step(inputs.flatten(0, 1), target=targets.flatten(0, 1))
        for x, target in zip(inputs, targets):
            (loss_fn(Layers(whole)(x), target) / (4 * plan.microbatches)).backward()
    for layer, right in zip(layers, whole):
        right = dict(right.named_parameters())
        for name, p in layer.named_parameters():
            assert (p.grad - right[name.replace("e.0", f"e.{expert}")].grad).abs().max() <= 1e-6, name


def refusals(me, pipeline, groups):
    rank, expert = divmod(me, 2)
    plan, single = plan_of("1f1b", "component"), cf.compile("1f1b", ranks=2, microbatches=4)

    def made(plan, expert_parallel, layer_group=None, odd=False, links=None, named=True, **options):
        stages = {rank: layers_of(plan_of("1f1b", "component"), rank, expert, groups[rank], 2)}
        for layer in stages[rank]:
            if named:
                layer.expert_parameters = layer.e.parameters
            if layer_group is not None:
                layer.expert_group = layer_group
            if odd:
                layer.a.weight.expert = me == 0
        return PlanSchedule(plan, stages, loss_fn, pipeline, expert_parallel=expert_parallel, links=links, **options)

    alone = [dist.new_group([process]) for process in range(4)][me]
    links = [Links({(0, 1), (1, 0)}, {(0,), (1,)}, pipeline, expert_parallel=of) for of in (None, groups[rank])]
    made(plan, groups[rank], links=links[1])
    for make, text in ((lambda: made(single, groups[rank]), "compile it with expert_parallel=2"),
                       (lambda: made(plan, None, groups[rank]), "pass their group as expert_parallel="),
                       (lambda: made(plan, alone, groups[rank]), "pass their group as expert_parallel="),
                       (lambda: made(plan, groups[rank], links=links[0]), "make Links with the same expert_par"),
                       (lambda: made(plan, groups[1 - rank]), "is not in expert_parallel"),
                       (lambda: made(plan, None), "pass expert_parallel=, a group of as many"),
                       (lambda: made(plan, groups[rank], named=False), "give it expert_parameters()"),
                       (lambda: made(plan, groups[rank], data_parallel=pipeline), "the same rank of another pipeline"),
                       (lambda: made(plan, groups[rank], odd=True), "other parameters or experts in stage"),
                       (lambda: made(plan, pipeline), "give both the same experts"),
                       (lambda: made(plan if expert else plan_of("zb-1p", "component"), groups[rank]),
                        "or their plans differ")):
        try:
            make()
        except ValueError as error:
            assert text in str(error), (text, error)
        else:
            raise AssertionError("not refused: " + text)


def streams():
    """Blocks on the streams of an emulated GPU: no race, and the bits of lanes that are threads."""
    import torch_streams_test as emulated
    text, _ = emulated.pair("1f1b", 2, 4, "mmm", recompute="experts")

    def stages_of(plan, rank):
        with making:  # ranks are threads of one process
            stages, number = {}, 0
            for s, kinds in enumerate(plan.stage_layers or ["m" * n for n in plan.partition]):
                stages[s] = [titan_block(number + k) for k in range(len(kinds))]
                number += len(kinds)
            for block in (block for blocks in stages.values() for block in blocks):
                block.attention = torch.nn.Linear(WIDTH, WIDTH)
                block.attention.load_state_dict(block.moe.shared_experts.state_dict())
            return {s: [from_moe_block(block, None, capacity) for block in stages[s]] for s in plan.stages_of(rank)}

    making = threading.Lock()
    for capacity in (None, 2):
        with unittest.mock.patch.object(emulated, "stages_of", stages_of):
            machine = emulated.Machine()
            both = [emulated.trained(text), emulated.trained(text, machine)]
        assert not machine.races, machine.races[0]
        for (losses, grads), (other, others) in zip(*both):
            assert all(map(torch.equal, losses, other)) and any(g is not None for g in grads.values())
            assert all(g is None and others[key] is None or torch.equal(g, others[key]) for key, g in grads.items())
    print("blocks on an emulated GPU: no race, the same bits")


def main():
    torch.set_num_threads(1)
    for size, work in ((3, exchanges), (3, dispatches), (1, products), (3, titan), (4, plans), (4, replicas)):
        expect_success(run_processes(size, work, size, limit=120.0))
        print(f"{work.__name__} over {size} processes: as in one")
    if hasattr(torch, "get_default_device"):
        streams()


if __name__ == "__main__":
    sys.exit(main())
