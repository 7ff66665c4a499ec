"""A training loop around step(): its rows, the mean loss, the norm over all ranks, added losses, names of
the whole model, and states that go to another schedule, against one process."""

import io
import os
import tempfile
import unittest

from torch_model import WIDTH, Block, Processes, dist, loss_fn, torch

import contraflow as cf
from contraflow.torch import PlanSchedule, add_loss

LAYERS, MICROBATCHES, ROWS = 4, 4, 8
PLANS = (("zb-v", {}), ("dualpipe", {}), ("1f1b", {}), ("interleaved-1f1b", {"chunks": 2}))


class Balanced(Block):
    """Adds a loss of its own, as a router does."""

    def forward(self, x):
        if not self.adds:
            return super().forward(x)
        router = torch.tanh(self.up(x))
        return super().forward(add_loss(x, 0.1 * router.pow(2).mean()))


def layers_of(tied=False):
    layers = [Balanced(k) for k in range(LAYERS)]
    for k, layer in enumerate(layers):
        layer.adds = k in (1, 2)
        layer.register_buffer("steps", torch.tensor([float(k)]))
        layer.register_buffer("not_kept", torch.zeros(1), persistent=False)
    if tied:
        layers[-1].up.weight = layers[0].up.weight
    return layers


def data(step):
    generator = torch.Generator().manual_seed(step)
    return tuple(torch.randn(ROWS, WIDTH, generator=generator) for _ in range(2))


def one_process(steps, tied, norm_type=2.0):
    """(loss, norm) of each step, the layers after it, and the state of the optimizer."""
    model = torch.nn.Sequential(*layers_of(tied))
    optimizer, seen = torch.optim.AdamW(model.parameters(), lr=0.01), []
    for step in range(steps):
        optimizer.zero_grad()
        losses, added = [], []
        for x, y in zip(*(values.chunk(MICROBATCHES) for values in data(step))):
            more = 0
            for layer in model:
                if layer.adds:
                    more = more + 0.1 * torch.tanh(layer.up(x)).pow(2).mean()
                x = Block.forward(layer, x)
            loss = loss_fn(x, y)
            ((loss + more) / MICROBATCHES).backward()
            losses.append(loss.detach())
            added.append(more.detach())
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type)
        optimizer.step()
        seen.append([torch.stack(losses).mean(), torch.stack(added).mean(), norm])
    return seen, model, optimizer


class Pipeline:
    """The layers in stages of a plan, with an optimizer."""

    def __init__(self, plan, rank, group=None, tied=False):
        self.plan, each, layers = plan, LAYERS // plan.stages, layers_of(tied)
        first, last = (0, "0.up.weight"), (plan.stages - 1, f"{each - 1}.up.weight")
        self.stages = {s: torch.nn.Sequential(*layers[s * each:(s + 1) * each]) for s in plan.stages_of(rank)}
        if tied and not {0, plan.stages - 1} <= {*self.stages}:
            for s, name in (first, last):
                if s in self.stages:
                    self.stages[s].tied_parameters = {name: (first, last)}

        def names(stage, name):
            index, _, rest = name.partition(".")
            return f"model.{stage * each + int(index)}.{rest}"
        self.schedule = PlanSchedule(plan, self.stages, loss_fn, group, names=names)
        self.optimizer = torch.optim.AdamW([p for _, p in self.schedule.named_parameters()], lr=0.01)

    def step(self, step, norm_type=2.0):
        self.optimizer.zero_grad()
        x, y = self.schedule.rows(data(step))
        self.schedule.step(x, target=y)
        found = [self.schedule.loss(), self.schedule.loss(added=True),
                 self.schedule.clip_grad_norm_(0.1, norm_type)]
        self.optimizer.step()
        return found


def plan_of(name, ranks, options):
    return cf.compile(name, ranks=ranks, microbatches=MICROBATCHES, **options)


def expect_model(pipeline, model):
    whole = model.state_dict()
    own = pipeline.schedule.state_dict()
    for name, value in own.items():
        torch.testing.assert_close(value, whole[name[len("model."):]], rtol=1e-4, atol=1e-5)
    return own


def training(rank):
    for tied in (False, True):
        for name, options in PLANS:
            plan = plan_of(name, 2, options)
            for norm_type in (2.0, 1.0, float("inf")) if name == "dualpipe" or tied else (2.0,):
                expected, model, _ = one_process(3, tied, norm_type)
                pipeline = Pipeline(plan, rank, tied=tied)
                if tied and rank == 1 and plan.stages - 1 in pipeline.stages:
                    with torch.no_grad():
                        pipeline.stages[plan.stages - 1][-1].up.weight.add_(1)
                pipeline.schedule.sync_parameters()
                for step in range(3):
                    found = pipeline.step(step, norm_type)
                    torch.testing.assert_close(torch.stack(found), torch.stack(expected[step]), rtol=1e-4, atol=1e-6,
                                               msg=lambda text: f"{name} tied={tied} {norm_type} step {step}: {text}")
                    everywhere = [None, None]
                    dist.all_gather_object(everywhere, [value.item() for value in found])
                    assert everywhere[0] == everywhere[1], everywhere
                own = expect_model(pipeline, model)
                assert not any("not_kept" in name for name in own)
                everywhere = [None, None]
                dist.all_gather_object(everywhere, sorted(own))
                names = sorted(f"model.{name}" for name in model.state_dict())
                assert sorted({*everywhere[0], *everywhere[1]}) == names, everywhere
                once = [name for name, _ in pipeline.schedule.named_parameters()]
                assert len(once) == len({*once}) == len({id(p) for _, p in pipeline.schedule.named_parameters()})


def other_states(rank):
    """Two steps under one plan, a checkpoint, a step under another."""
    expected, model, _ = one_process(2, False)
    pipeline = Pipeline(plan_of("zb-v", 2, {}), rank)
    for step in range(2):
        pipeline.step(step)
    parts = [None, None]
    dist.all_gather_object(parts, pipeline.schedule.state_dict())
    whole = {**parts[0], **parts[1]}
    saved = io.BytesIO()
    torch.save(whole, saved)
    group = [dist.new_group([r]) for r in range(2)][rank]
    for name, ranks, options in (("dualpipe", 2, {}), ("1f1b", 1, {})):
        other = Pipeline(plan_of(name, ranks, options), rank if ranks == 2 else 0, None if ranks == 2 else group)
        saved.seek(0)
        other.schedule.load_state_dict(torch.load(saved))
        expect_model(other, model)
    try:
        other.schedule.load_state_dict({"model.0.up.weight": torch.zeros(WIDTH, WIDTH)})
    except ValueError as error:
        assert "the state has no 'model.0.steps', nor 26 others" in str(error), error
    else:
        raise AssertionError("a part of a state was taken for all of it")
    other.schedule.load_state_dict({"model.0.up.weight": torch.zeros(WIDTH, WIDTH)}, strict=False)
    assert not other.stages[0][0].up.weight.any()


def distributed_checkpoint(rank):
    """Saved by zb-v on two ranks with its optimizer, and by dualpipe; trained on by others."""
    import torch.distributed.checkpoint as dcp
    group = [dist.new_group([r]) for r in range(2)][rank]
    expected, model, _ = one_process(3, False)
    plans = [("zb-v", 2, {}), ("dualpipe", 2, {}), ("1f1b", 1, {})]

    def made(name, ranks, options):
        return Pipeline(plan_of(name, ranks, options), rank if ranks == 2 else 0, None if ranks == 2 else group)
    sizes = []
    for before in plans[:2]:
        first = made(*before)
        for step in range(2):
            first.step(step)
        folder = [tempfile.mkdtemp()]
        dist.broadcast_object_list(folder, 0)

        def states(pipeline):
            return {"model": pipeline.schedule.state_dict(),
                    "optimizer": pipeline.schedule.optimizer_state_dict(pipeline.optimizer)}
        dcp.save(states(first), checkpoint_id=folder[0])
        size = sum(os.path.getsize(f"{folder[0]}/{name}") for name in os.listdir(folder[0])
                   if name.endswith(".distcp"))
        sizes.append(size)
        for after in plans:
            second = made(*after)
            with torch.no_grad():
                for _, p in second.schedule.named_parameters():
                    p.zero_()
            loaded = states(second)
            dcp.load(loaded, checkpoint_id=folder[0])
            second.schedule.load_state_dict(loaded["model"])
            second.schedule.load_optimizer_state_dict(second.optimizer, loaded["optimizer"])
            found = second.step(2)
            torch.testing.assert_close(torch.stack(found), torch.stack(expected[2]), rtol=1e-4, atol=1e-6)
            expect_model(second, model)
    assert sizes[1] < 1.3 * sizes[0], f"holders saved twice: {sizes}"


class Experts(torch.nn.Module):
    """Some of the matrices of a layer, all of which see each row."""

    def __init__(self, begin, count):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(WIDTH))
        whole = torch.randn(4, WIDTH, WIDTH, generator=torch.Generator().manual_seed(1))
        self.weights = torch.nn.Parameter(whole[begin:begin + count].clone())
        self.weights.expert = True

    def forward(self, x):
        return x + (x @ self.weights.sum(0)).tanh() + self.bias


def experts_over_a_group(rank):
    """Their states are one tensor, from and for any number of processes."""
    import torch.distributed.checkpoint as dcp
    x, y = data(rank)
    group = [dist.new_group([r]) for r in range(2)][rank]

    def made(stage, spread):
        plan = plan_of("1f1b", 1, {"expert_parallel": 2} if spread else {})
        schedule = PlanSchedule(plan, {0: stage}, loss_fn, group, expert_parallel=dist.group.WORLD if spread else None)
        return schedule, torch.optim.AdamW(stage.parameters(), lr=0.01)
    schedule, optimizer = made(Experts(2 * rank, 2), True)
    schedule.step(x, target=y)
    optimizer.step()
    own = dict(schedule.named_parameters())["stage.0.weights"]
    parts = [[None, None], [None, None]]
    for values, part in zip((own, optimizer.state[own]["exp_avg"]), parts):
        dist.all_gather_object(part, values.detach())
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder, 0)

    def states(schedule, optimizer):
        return {"model": schedule.state_dict(), "optimizer": schedule.optimizer_state_dict(optimizer)}
    dcp.save(states(schedule, optimizer), checkpoint_id=folder[0])
    for spread in (False, True):
        count, begin = (2, 2 * rank) if spread else (4, 0)
        schedule, optimizer = made(Experts(0, count), spread)
        loaded = states(schedule, optimizer)
        dcp.load(loaded, checkpoint_id=folder[0])
        schedule.load_state_dict(loaded["model"])
        schedule.load_optimizer_state_dict(optimizer, loaded["optimizer"])
        own = dict(schedule.named_parameters())["stage.0.weights"]
        for value, part in zip((own, optimizer.state[own]["exp_avg"]), parts):
            assert value.shape[0] == count and part[0].any() and not torch.equal(*part)
            assert torch.equal(value, torch.cat(part)[begin:begin + count]), (spread, value)
    whole = torch.arange(4.0).view(4, 1, 1).expand(4, WIDTH, WIDTH)
    schedule.load_state_dict({"stage.0.weights": whole, "stage.0.bias": torch.zeros(WIDTH)})
    assert own[:, 0, 0].tolist() == [2 * rank, 2 * rank + 1], own[:, 0, 0]
    try:
        schedule.load_state_dict({"stage.0.weights": torch.ones(3, WIDTH, WIDTH)}, strict=False)
    except ValueError as error:
        assert "[2, 8, 8] is one of 2 parts along dimension 0, and the state has shape [3, 8, 8]" in str(error), error
    else:
        raise AssertionError("a state of three experts was taken")


def same_chunks(rank):
    plan = plan_of("1f1b", 2, {})
    PlanSchedule(plan, {rank: Block(rank)}, loss_fn, chunk_spec={"mask": rank == 0})


def one_side_ties(rank):
    stage = Block(rank)
    if rank == 0:
        stage.tied_parameters = {"up.weight": ((0, "up.weight"), (1, "up.weight"))}
    PlanSchedule(plan_of("1f1b", 2, {}), {rank: stage}, loss_fn)


def tied_and_reduced(rank):
    stage = Block(rank)
    stage.tied_parameters = {"up.weight": ((0, "up.weight"), (1, "up.weight"))}
    PlanSchedule(plan_of("1f1b", 2, {}), {rank: stage}, loss_fn, on_step=print)


REFUSED = {same_chunks: r"process 1 has chunk_spec=\{'mask': False\}, process 0 has chunk_spec=\{'mask': True\}",
           one_side_ties: r"process 0 ties .*, and process 1, which holds stage 1, None: give both",
           tied_and_reduced: r"stage \d: tied_parameters.* complete at the end of the step: leave out"}


class LoopTest(unittest.TestCase):
    def run_all(self, works):
        running = [(work, Processes(2, work)) for work in works]
        for work, processes in running:
            for code, printed in processes.results(120.0):
                with self.subTest(work.__name__):
                    self.assertEqual(code, 1 if work in REFUSED else 0, printed)
                    if work in REFUSED:
                        self.assertRegex(printed, REFUSED[work])

    def test_all(self):
        self.run_all([training, other_states])
        self.run_all(REFUSED)

    def test_distributed_checkpoint(self):
        try:
            import torch.distributed.checkpoint.state_dict  # noqa: F401
        except ImportError:
            self.skipTest("this torch has no state dicts of torch.distributed.checkpoint")
        self.run_all([distributed_checkpoint, experts_over_a_group])

    def test_rows(self):
        from contraflow.torch.batch import Batch
        plan = cf.compile("dualpipe", ranks=2, microbatches=6)
        x, text = torch.arange(12), ["a"]
        starts = [sorted(m for r in plan.routes if r.ranks[0] == rank for m in r.microbatches) for rank in range(2)]
        for rank in range(2):
            batch = Batch(plan, rank, None, False, None)
            given, other = batch.rows({"x": x, "inside": (x + 1, text)})
            for mine, part in ((starts[rank], given), (starts[1 - rank], other)):
                expected = [row for m in mine for row in (2 * m, 2 * m + 1)]
                self.assertEqual(part["x"].tolist(), expected)
                self.assertEqual(part["inside"][0].tolist(), [row + 1 for row in expected])
                self.assertIs(part["inside"][1][0], text[0])
        middle = Batch(cf.compile("1f1b", ranks=3, microbatches=6), 1, None, False, None)
        self.assertEqual(middle.rows((x, {"y": x})), (None, {"y": None}))
        with self.assertRaisesRegex(ValueError, "does not chunk into 6 micro-batches of the same size"):
            batch.rows((x[:11], x))

    def test_names_of_two_tensors(self):
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        plan = plan_of("interleaved-1f1b", 1, {"chunks": 2})
        schedule = PlanSchedule(plan, {0: Block(0), 1: Block(1)}, loss_fn, names=lambda stage, name: name)
        with self.assertRaisesRegex(ValueError, "norm.weight of stage 1 has the name 'norm.weight', and so has another"):
            schedule.state_dict()
        dist.destroy_process_group()

    def test_added_losses(self):
        with self.assertRaisesRegex(ValueError, r"a scalar loss, got a tensor of shape \[2\]"):
            add_loss(torch.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True))
        x = torch.zeros(2)
        self.assertIs(add_loss(x, torch.zeros(())), x)


if __name__ == "__main__":
    unittest.main()
