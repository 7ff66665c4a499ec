"""split: stages cut from a torch.nn.Sequential and from a decoder of Hugging Face's form, whose names, masks, ties and
checkpoints are the model's own; models on the meta device; refusals."""

import types
import unittest

import torch_model  # noqa: F401  (ends with 77 where there is no torch)
import torch_layers
from torch_model import Processes, dist, torch

import contraflow as cf
from contraflow.torch import PlanSchedule, split
from contraflow.torch.layers import Layers

VOCABULARY, HIDDEN, LAYERS, MICROBATCHES, SEQUENCE = 11, 8, 6, 4, 5
nn = torch.nn


class Layer(nn.Module):
    """Attends to those before it, scaled by its type, with checkpoints where `checkpointed`."""

    checkpointed = False

    def __init__(self, index):
        super().__init__()
        self.layer_index = index
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def attend(self, hidden, mask, cos):
        q, k, v = (self.qkv(hidden) * cos).chunk(3, -1)
        scores = (q @ k.transpose(1, 2)).masked_fill(~mask, -1e4)
        return hidden + self.out(scores.softmax(-1) @ v) / (1 + self.layer_index)

    def forward(self, hidden, attention_mask, cos):
        if self.checkpointed:
            return torch.utils.checkpoint.checkpoint(self.attend, hidden, attention_mask, cos, use_reentrant=False)
        return self.attend(hidden, attention_mask, cos)


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("frequency", torch.linspace(0.1, 1, 3 * HIDDEN), persistent=False)

    def reset_parameters(self):
        self.frequency.copy_(torch.linspace(0.1, 1, 3 * HIDDEN))

    def forward(self, hidden):
        return torch.cos(torch.arange(hidden.shape[1]).view(-1, 1) * self.frequency)


class Core(nn.Module):
    """Scales embeddings wherever they come from, and masks by the type of each layer."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList([Layer(k) for k in range(config.num_hidden_layers)])
        self.norm = nn.LayerNorm(HIDDEN)
        self.rotary_emb = Rotary()

    def forward(self, input_ids=None, inputs_embeds=None, attention_mask=None, use_cache=True):
        assert (input_ids is None) != (inputs_embeds is None) and not use_cache
        hidden = 3 * (self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds)
        size = hidden.shape[1]
        full = torch.ones(size, size).tril() > 0
        if attention_mask is not None:
            full = full & (attention_mask[:, None] > 0)
        masks = {"full": full, "sliding": full & (torch.ones(size, size).triu(-1) > 0)}
        for k, layer in enumerate(self.layers[: self.config.num_hidden_layers]):
            hidden = layer(hidden, attention_mask=masks[self.config.layer_types[k]], cos=self.rotary_emb(hidden))
        return types.SimpleNamespace(last_hidden_state=self.norm(hidden))


class Decoder(nn.Module):
    def __init__(self, tied=False, layers=LAYERS):
        super().__init__()
        torch.manual_seed(5)
        self.config = types.SimpleNamespace(num_hidden_layers=layers,
                                            layer_types=["full" if k % 3 else "sliding" for k in range(layers)])
        self.model = Core(self.config)
        self.lm_head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, input_ids=None, inputs_embeds=None, attention_mask=None, use_cache=True):
        made = self.model(input_ids, inputs_embeds, attention_mask, use_cache)
        return types.SimpleNamespace(logits=self.lm_head(made.last_hidden_state) / 2)


def loss_fn(logits, labels):
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def data():
    tokens = torch.randint(0, VOCABULARY, (2 * MICROBATCHES, SEQUENCE + 1), generator=torch.Generator().manual_seed(3))
    mask = torch.ones(2 * MICROBATCHES, SEQUENCE, dtype=torch.long)
    mask[::2, -2:] = 0
    return tokens[:, :-1], tokens[:, 1:], mask


def costs(partition=True):
    layers = [{"name": "block", "repeat": LAYERS, "f": 2, "b": 2, "w": 2}]
    if partition:
        layers = [{"name": "embedding", "f": 1, "b": 0, "w": 1}, *layers, {"name": "head", "f": 7, "b": 7, "w": 7}]
    return {"unit": "ms", "layers": layers}


def plan_of(name, ranks, **options):
    return cf.compile(name, ranks=ranks, microbatches=MICROBATCHES, **options)


PLANS = (("1f1b", {}), ("1f1b", {"costs": costs()}), ("zb-v", {"costs": costs(), "partition": "1,3,2,2"}),
         ("dualpipe", {"costs": costs(False)}),
         ("interleaved-1f1b", {"chunks": 2, "costs": costs(), "partition": "3,2,2,1"}))  # the head alone


def one_process(tied):
    model, losses = Decoder(tied), []
    for x, y, mask in zip(*(values.chunk(MICROBATCHES) for values in data())):
        loss = loss_fn(model(x, attention_mask=mask, use_cache=False).logits, y)
        (loss / MICROBATCHES).backward()
        losses.append(loss.detach())
    return torch.stack(losses).mean(), {name: p.grad for name, p in model.named_parameters()}


def decoders(rank):
    for tied, checkpointed in ((False, False), (True, False), (False, True)):
        loss, grads = one_process(tied)
        for name, options in PLANS:
            plan = plan_of(name, 2, **options)
            model = Decoder(tied)
            stages = split(model, plan, rank)
            assert all(p is dict(model.named_parameters())[n if not tied else n.replace(
                "lm_head", "model.embed_tokens")] for s in stages.values() for n, p in s.named_parameters())
            for stage in stages.values():
                stage.eval().train()
                for layer in stage.model.layers:
                    layer.checkpointed = checkpointed
            schedule = PlanSchedule(plan, stages, loss_fn)
            x, y, mask = data()
            x, y = schedule.rows((x, y))
            schedule.step(x, target=y, attention_mask=mask)
            if plan.stages == 2 and len(plan.routes) == 1 and not tied:
                assert torch.equal(schedule.loss(), loss), (name, schedule.loss(), loss)
            torch.testing.assert_close(schedule.loss(), loss)
            found = {n: p.grad for s in stages.values() for n, p in s.named_parameters()}
            for n, grad in found.items():
                expected = grads[n.replace("lm_head", "model.embed_tokens") if tied else n]
                torch.testing.assert_close(grad, expected, rtol=1e-5, atol=1e-7,
                                           msg=lambda text: f"{plan} {n} {text}")
            names = [None, None]
            dist.all_gather_object(names, [*schedule.state_dict()])
            assert {*names[0], *names[1]} == {*model.state_dict()}, names


class Batched(nn.Sequential):
    pass


def sequentials(rank):
    def model():
        torch.manual_seed(1)
        layers = [nn.Embedding(VOCABULARY, HIDDEN), *(nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh()) for _ in range(4)),
                  nn.Linear(HIDDEN, VOCABULARY, bias=False)]
        layers[-1].weight = layers[0].weight
        return Batched(*layers)
    whole, (x, y, _) = model(), data()
    (loss_fn(whole(x), y)).backward()
    grads = {name: p.grad for name, p in whole.named_parameters()}
    grads["5.weight"] = grads["0.weight"]
    for name, options in (("1f1b", {}), ("zb-v", {"partition": "2,1,1,2", "costs": {
            "unit": "ms", "layers": [{"name": "block", "repeat": 6, "f": 2, "b": 2, "w": 2}]}}), ("dualpipe", {})):
        plan = plan_of(name, 2, **options)
        stages = split(model(), plan, rank)
        schedule = PlanSchedule(plan, stages, loss_fn)
        start, end = schedule.rows((x, y))
        schedule.step(start, target=end)
        sizes = {s: len(stage) for s, stage in stages.items()}
        assert sizes == {s: plan.partition[s] if plan.partition else 3 for s in stages}, sizes
        for stage in stages.values():
            for n, p in stage.named_parameters():
                torch.testing.assert_close(p.grad, grads[n], rtol=1e-5, atol=1e-7)


def in_layers(rank):
    """Plans of level component get the layers of a stage, under their names in the model."""
    parts = {"attn_f": 2, "attn_b": 2, "attn_w": 1, "mlp_f": 2, "mlp_b": 2, "mlp_w": 1}
    moe = {**parts, "dispatch_f": 1, "combine_f": 1, "dispatch_b": 1, "combine_b": 1}
    costs = {"unit": "ms", "layers": [{"name": "dense", "repeat": 2, "dense": parts}, {"name": "moe", "repeat": 3,
                                                                                       "moe": moe}]}
    makes = [torch_layers.Dense] * 2 + [torch_layers.Moe] * 3
    plan = plan_of("dualpipe", 2, costs=costs, level="component", partition="2,3")
    model = nn.Sequential(*(make(k) for k, make in enumerate(makes)))
    whole = Layers([make(k) for k, make in enumerate(makes)])
    inputs, targets = torch_layers.batch(MICROBATCHES)
    for x, y in zip(inputs, targets):
        (torch_layers.loss_fn(whole(x), y) / MICROBATCHES).backward()
    stages = split(model, plan, rank)
    assert {s: [type(layer) for layer in stage] for s, stage in stages.items()} == {0: makes[:2], 1: makes[2:]}
    schedule = PlanSchedule(plan, stages, torch_layers.loss_fn)
    x, y = schedule.rows((inputs.flatten(0, 1), targets.flatten(0, 1)))
    schedule.step(x, target=y)
    assert [n for n, _ in schedule.named_parameters()] == [n for n, _ in model.named_parameters()]
    for (n, p), expected in zip(schedule.named_parameters(), whole.parameters()):
        torch.testing.assert_close(p.grad, expected.grad, rtol=1e-5, atol=1e-7)


def on_meta(rank):
    """Only what the rank holds is allocated; ties, tables that no state has and loaded states are right."""
    def model():
        with torch.device("meta"):
            return Decoder(tied=True)
    plan, whole = plan_of("zb-v", 2, costs=costs(), partition="1,3,2,2"), model()
    stages = split(whole, plan, rank)
    held = {n for stage in stages.values() for n, _ in stage.named_parameters()}
    assert all(p.is_meta == (n not in held) for n, p in whole.named_parameters())
    for stage in stages.values():
        assert not any(t.is_meta for t in (*stage.parameters(), *stage.buffers()))
        assert torch.equal(stage.model.rotary_emb.frequency, torch.linspace(0.1, 1, 3 * HIDDEN))
    if rank == 0:
        assert stages[3].lm_head.weight is stages[0].model.embed_tokens.weight
        assert torch.isfinite(stages[3].lm_head.weight).all()
    loss, grads = one_process(True)
    state = Decoder(True).state_dict()
    del state["lm_head.weight"]  # as files of tied models have it
    calls = []
    again = split(model(), plan, rank, init=calls.append)
    assert calls == [again[s] for s in sorted(again)]
    for given in (stages, again):
        schedule = PlanSchedule(plan, given, loss_fn)
        schedule.load_state_dict(state)
        x, y, mask = data()
        x, y = schedule.rows((x, y))
        schedule.step(x, target=y, attention_mask=mask)
        torch.testing.assert_close(schedule.loss(), loss)
        for n, p in schedule.named_parameters():
            torch.testing.assert_close(p.grad, grads[n.replace("lm_head", "model.embed_tokens")], rtol=1e-5, atol=1e-7)
    plan = plan_of("1f1b", 2)  # tied over ranks: either name will do
    schedule = PlanSchedule(plan, split(model(), plan, rank), loss_fn)
    schedule.load_state_dict(state)
    torch.testing.assert_close(dict(schedule.named_parameters())[
        "lm_head.weight" if rank else "model.embed_tokens.weight"].detach(), state["model.embed_tokens.weight"])
    try:
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict  # noqa: F401, torch 2.5
    except ImportError:
        return
    optimizer = torch.optim.AdamW([p for _, p in schedule.named_parameters()])
    for _, p in schedule.named_parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    state = schedule.optimizer_state_dict(optimizer)
    one, other = (state[f"state.{name}.exp_avg"] for name in ("lm_head.weight", "model.embed_tokens.weight"))
    assert torch.equal(one, other)
    schedule.load_optimizer_state_dict(optimizer, {key: torch.zeros_like(value) if key.endswith("exp_avg") else value
                                                   for key, value in state.items()})
    assert all((of["exp_avg"] == 0).all() for of in optimizer.state.values())


class SplitTest(unittest.TestCase):
    def test_all(self):
        works = [decoders, sequentials, in_layers] + ([on_meta] if hasattr(torch, "get_default_device") else [])
        for work, processes in [(work, Processes(2, work)) for work in works]:
            for code, printed in processes.results(120.0):
                with self.subTest(work.__name__):
                    self.assertEqual(code, 0, printed)

    def test_a_rank_frees_what_it_does_not_hold(self):
        import gc
        import weakref
        model = Decoder()
        others = [weakref.ref(layer) for layer in model.model.layers[3:]] + [weakref.ref(model.lm_head)]
        stages = split(model, plan_of("1f1b", 2), 0)
        del model
        gc.collect()
        self.assertEqual([ref() for ref in others], [None] * 4)
        self.assertEqual([name for name, _ in stages[0].model.layers.named_children()], ["0", "1", "2"])

    def test_refusals(self):
        class Positions(Decoder):
            def __init__(self):
                super().__init__()
                self.model.positions = nn.Embedding(3, 3)
        eight = {"unit": "ms", "layers": [{"name": "block", "repeat": 8, "f": 2, "b": 2, "w": 2}]}
        mtp = {"unit": "ms", "layers": [{"name": "block", "repeat": 6, "f": 2, "b": 2, "w": 2}, {"name": "mtp", "f": 1,
                                                                                                 "b": 1, "w": 1}]}
        for call, error, text in (
                (lambda: split(nn.Linear(2, 2), plan_of("1f1b", 2), 0), TypeError, "takes a torch.nn.Sequential, or a "
                 "decoder .* and not a Linear with no modules: make the stages yourself"),
                (lambda: split(Core(Decoder().config), plan_of("1f1b", 2), 0), TypeError, "a Core with embed_tokens, l"),
                (lambda: split(Positions(), plan_of("1f1b", 2), 0), ValueError, "Positions has model.positions.weight"),
                (lambda: split(Decoder(), plan_of("1f1b", 2, costs=eight), 0), ValueError,
                 "for the layers Et.*L, and the model has 6 .* costs of this model"),
                (lambda: split(Decoder(), plan_of("1f1b", 2, costs=mtp), 0), ValueError, "for the layers Et.*m"),
                (lambda: split(Decoder(layers=1), plan_of("1f1b", 2), 0), cf.Error, "at least one for each stage, is 1"),
                (lambda: split(Decoder(), plan_of("1f1b", 2), 0, layers="1,4"), ValueError, "the model has 6"),
                (lambda: split(nn.Sequential(nn.Tanh(), nn.Tanh()), plan_of("1f1b", 2, costs=eight), 0), ValueError,
                 r"for 8 layers .\[4, 4\]., and the model has 2 modules"),
                (lambda: split(nn.Sequential(nn.Tanh(), nn.Tanh()), plan_of("1f1b", 2), 0, expert_parallel=1), ValueError,
                 "cuts no experts of a torch.nn.Sequential: give it layers that have their own"),
                (lambda: split(Decoder(), plan_of("1f1b", 2), 0, expert_parallel=1), ValueError,
                 "from_moe_block does not know Layer"),
                (lambda: split(nn.Sequential(nn.Tanh(), nn.Tanh()), plan_of("1f1b", 2), 0, layers=4), ValueError,
                 "layers=4 is for 4, and the model has 2 modules")):
            with self.subTest(text), self.assertRaisesRegex(error, text):
                call()

    @unittest.skipUnless(hasattr(torch, "get_default_device"), "this torch has no meta device as a context")
    def test_meta_without_a_way_to_begin(self):
        class Table(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("table", torch.zeros(2), persistent=False)
        def model():
            with torch.device("meta"):
                return nn.Sequential(nn.Linear(2, 2), Table())
        with self.assertRaisesRegex(ValueError, r"1 \(Table\) of the model is on the meta device .* pass init="):
            split(model(), plan_of("1f1b", 1), 0)
        with self.assertRaisesRegex(ValueError, r"1 \(Table\) of the model"):  # no state has it either
            split(model(), plan_of("1f1b", 1), 0, init=lambda stage: None)


if __name__ == "__main__":
    unittest.main()
