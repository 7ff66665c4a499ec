"""PlanSchedule on one rank: what step() takes and gives, what it refuses, names in profiles, traces."""

import json
import os
import tempfile
import threading
import unittest
import unittest.mock

from torch_model import WIDTH, Block, Reference, batch, dist, loss_fn, torch

import contraflow as cf
from contraflow.torch import PlanSchedule, StepError, as_torch_schedule

MICROBATCHES = 3


class WithBias(Block):
    def forward(self, x, bias=None, scale=1):
        return super().forward(x) + (0 if bias is None else bias * scale)


def plan_of(name="1f1b", **options):
    return cf.compile(name, ranks=1, microbatches=MICROBATCHES, **options)


def data():
    return tuple(values.flatten(0, 1) for values in batch(MICROBATCHES))


class StepTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())

    @classmethod
    def tearDownClass(cls):
        dist.destroy_process_group()

    def test_losses_outputs_gradients(self):
        module, (x, y) = Block(0), data()
        expected = Reference(1, MICROBATCHES)
        for scale in (True, False):
            module.zero_grad(set_to_none=True)
            schedule = PlanSchedule(plan_of(), {0: module}, loss_fn, scale_grads=scale)
            losses = ["old"]
            outputs = schedule.step(x, target=y, losses=losses, return_outputs=True)
            self.assertTrue(torch.equal(torch.stack(losses), torch.stack(expected.losses)))
            self.assertTrue(torch.allclose(outputs, module(x)))
            self.assertFalse(outputs.requires_grad)
            for p, g in zip(module.parameters(), expected.sum(0, range(MICROBATCHES))):
                self.assertTrue(torch.equal(p.grad, g / MICROBATCHES if scale else g))
        self.assertIsNone(schedule.step(x, target=y))

    def test_hooks(self):
        module, (x, y), calls = Block(0), data(), []

        def seen(name):
            return lambda *arguments: calls.append((name, arguments[0], module.up.weight.grad.clone()))
        schedule = PlanSchedule(plan_of(data_parallel=2), {0: module}, loss_fn, grad_reduce=seen("reduce"),
                                on_step=seen("step"))
        schedule.step(x, target=y)
        self.assertEqual([call[:2] for call in calls], [("reduce", 0), ("step", 0)])
        for _, _, grad in calls:
            self.assertTrue(torch.equal(grad, module.up.weight.grad))

    def test_eval(self):
        module, (x, y) = Block(0), data()
        schedule, losses = PlanSchedule(plan_of("zb-1p"), {0: module}, loss_fn), []
        outputs = schedule.eval(x, target=y, losses=losses)
        self.assertTrue(torch.allclose(outputs, module(x)))
        self.assertTrue(torch.equal(torch.stack(losses), torch.stack(Reference(1, MICROBATCHES).losses)))
        self.assertIsNone(module.up.weight.grad)
        self.assertTrue(torch.allclose(schedule.eval(x, losses=losses), module(x)))
        self.assertEqual(losses, [])
        with torch.no_grad(), self.assertRaisesRegex(RuntimeError, r"use eval\(\)"):
            schedule.step(x, target=y)

    def test_what_modules_return(self):
        x, y = data()
        plan = plan_of("interleaved-1f1b", chunks=2)

        class Wrong(torch.nn.Module):
            def forward(self, x):
                return {"x": x}
        for stages, loss, text in (
                ({0: Wrong(), 1: Block(1)}, loss_fn, "stage 0 must return a tensor or a tuple of tensors, returned a dict"),
                ({0: Block(0), 1: Block(1)}, lambda y, t: y - t, r"scalar tensor, returned a tensor of shape \[2, 8\]"),
                ({0: Block(0), 1: Block(1)}, lambda y, t: loss_fn(y.detach(), t), "does not require a gradient"),
                ({0: Block(0), 1: Block(1)}, lambda y, t: 1.0, "scalar tensor, returned 1.0")):
            with self.subTest(text), self.assertRaisesRegex(StepError, text):
                PlanSchedule(plan, stages, loss).step(x, target=y)

    def test_keywords_are_chunked(self):
        module, (x, y) = WithBias(0), data()
        bias = torch.arange(float(len(x))).view(-1, 1)
        schedule = PlanSchedule(plan_of(), {0: module}, loss_fn)
        outputs = schedule.step(x, target=y, return_outputs=True, bias=bias, scale=2)
        self.assertTrue(torch.allclose(outputs, module(x, bias, 2)))
        outputs = schedule.step(x, target=y, return_outputs=True)
        self.assertTrue(torch.allclose(outputs, module(x)))

    def test_only_rows_of_the_batch_are_chunked(self):
        rows, count = 2 * MICROBATCHES, MICROBATCHES

        class Looks(Block):
            def forward(self, x, *more, **kwargs):
                seen.append((more, kwargs))
                return super().forward(x)
        x, y = data()
        for name in ("1f1b", "interleaved-1f1b"):
            plan = plan_of(name, **{"chunks": 2} if name != "1f1b" else {})
            stages, seen, targets = {s: Looks(s) for s in range(plan.stages)}, [], []

            def loss(output, target):
                targets.append(target)
                return loss_fn(output, target["y"][0])
            batch_rows = torch.arange(rows)
            given = {"bias": batch_rows, "table": torch.zeros(3 * rows, WIDTH), "one": torch.zeros(1, 3, WIDTH),
                     "number": torch.tensor(2.0), "text": "all", "none": None,
                     "inside": {"mask": batch_rows, "both": (torch.zeros(rows + 1), [batch_rows])}}
            schedule = PlanSchedule(plan, stages, loss)
            for _ in range(2):
                seen.clear(), targets.clear()
                schedule.step(x, {"positions": batch_rows, "scale": torch.ones(3)} if name == "1f1b" else 0,
                              target={"y": (y,), "weights": torch.ones(WIDTH)}, **given)
                self.assertEqual(len(seen), count * plan.stages)
                micro = {}
                for more, kwargs in seen:
                    m = int(kwargs["bias"][0]) // 2
                    micro[m] = micro.get(m, 0) + 1
                    part = [2 * m, 2 * m + 1]
                    self.assertEqual([t.tolist() for t in (kwargs["bias"], kwargs["inside"]["mask"],
                                                           kwargs["inside"]["both"][1][0])], [part] * 3)
                    if more and isinstance(more[0], dict):
                        self.assertEqual(more[0]["positions"].tolist(), part)
                        self.assertEqual(len(more[0]["scale"]), 3)
                    for name_of, value in given.items():
                        if name_of not in ("bias", "inside"):
                            self.assertIs(kwargs[name_of], value)
                    self.assertEqual(len(kwargs["inside"]["both"][0]), rows + 1)
                self.assertEqual(micro, {m: plan.stages for m in range(count)})
                self.assertEqual([(len(t["y"][0]), len(t["weights"])) for t in targets], [(2, WIDTH)] * count)
        with self.assertRaisesRegex(ValueError, "bias requires a gradient"):
            PlanSchedule(plan_of(), {0: WithBias(0)}, loss_fn).step(x, target=y, bias=torch.ones(1, requires_grad=True))

    def test_chunk_spec(self):
        (x, y), seen, rows = data(), [], 2 * MICROBATCHES

        class Looks(Block):
            def forward(self, x, more, **kwargs):
                seen.append((more, kwargs))
                return super().forward(x)
        given = {"table": torch.zeros(rows, 3), "tokens": torch.arange(2 * rows), "by_rows": torch.arange(rows),
                 "inside": {"mask": torch.arange(rows), "rope": (torch.zeros(rows, 2), [torch.arange(rows)])}}
        spec = {0: True, 1: False, "table": False, "tokens": True, "not given": True,
                "inside": {"rope": (False, [None])}, "target": {"y": True, "weights": False}}
        schedule = PlanSchedule(plan_of(), {0: Looks(0)}, lambda output, target: loss_fn(output, target["y"][:2])
                                + 0 * target["weights"][rows - 1], chunk_spec=spec)
        schedule.step(x, torch.ones(rows), target={"y": y.repeat_interleave(2, 0), "weights": torch.ones(rows)},
                      **given)
        for m, (more, kwargs) in enumerate(seen):
            part = [2 * m, 2 * m + 1]
            self.assertEqual(len(more), rows)
            self.assertIs(kwargs["table"], given["table"])
            self.assertIs(kwargs["inside"]["rope"][0], given["inside"]["rope"][0])
            self.assertEqual(kwargs["tokens"].tolist(), list(range(4 * m, 4 * m + 4)))
            self.assertEqual([t.tolist() for t in (kwargs["by_rows"], kwargs["inside"]["mask"],
                                                   kwargs["inside"]["rope"][1][0])], [part] * 3)
        for wrong, error, text in (
                ([], TypeError, "chunk_spec must be a dict .* is a list"),
                ({True: False}, TypeError, "chunk_spec: True must be the name of a keyword"),
                ({"inside": {"mask": 0}}, TypeError, r"chunk_spec\['inside'\] must be True .* has 0"),
                ({"inside": {"max": True}}, ValueError, "chunk_spec.'inside'. has 'max', .* has .'mask', 'rope'"),
                ({"inside": {"rope": [True]}}, ValueError, "a list of 1, and what is given there a tuple of 2"),
                ({"table": (True,)}, ValueError, "a tuple of 1, and what is given there a Tensor: give the same"),
                ({"tokens": True, "by_rows": True, "table": True, "odd": True}, ValueError,
                 r"odd has shape \[7\], which does not chunk into 3 micro-batches of the same size")):
            with self.subTest(text), self.assertRaisesRegex(error, text):
                PlanSchedule(plan_of(), {0: Looks(0)}, loss_fn, chunk_spec=wrong).step(
                    x, torch.ones(rows), target=y, odd=torch.arange(7), **given)

    def test_steps_add_up(self):
        x, y = data()
        for zeros in (None, 0.0):
            stages, calls = {0: Block(0), 1: Block(1)}, []
            schedule = PlanSchedule(plan_of("zb-v"), stages, loss_fn, grad_reduce=lambda s, module: calls.append(
                (s, module.up.weight.grad.clone())), on_step=lambda s: calls.append(
                (s, stages[s].up.weight.grad.clone())))
            if zeros is not None:
                for module in stages.values():
                    for p in module.parameters():
                        p.grad = torch.full_like(p, zeros)
            held = [p.grad for p in stages[0].parameters()]
            schedule.step(x, target=y)
            once = {s: [p.grad.clone() for p in module.parameters()] for s, module in stages.items()}
            schedule.eval(x)
            for _ in range(2):
                calls.clear()
                schedule.step(x, target=y)
            for s, module in stages.items():
                for p, g in zip(module.parameters(), once[s]):
                    self.assertTrue(torch.allclose(p.grad, 3 * g, rtol=1e-6))
                reduced, stepped = (g for at, g in calls if at == s)
                self.assertTrue(torch.equal(reduced, once[s][2]))
                self.assertTrue(torch.allclose(stepped, 3 * once[s][2], rtol=1e-6))
            if zeros is not None:
                self.assertTrue(all(p.grad is g for p, g in zip(stages[0].parameters(), held)))
        stages[0].down.bias.requires_grad_(False)
        schedule.step(x, target=y)
        self.assertTrue(torch.allclose(stages[0].down.bias.grad, 3 * once[0][5]))

    def test_a_device_that_is_not_current(self):
        with unittest.mock.patch("torch.cuda.current_device", lambda: 0):
            with self.assertRaisesRegex(ValueError, r"rank 0 has its modules on cuda:1, .* call torch.cuda.set_device\(1\)"):
                PlanSchedule(plan_of(), {0: Block(0)}, loss_fn, device="cuda:1")

    def test_closed(self):
        x, y = data()
        schedule = PlanSchedule(plan_of(), {0: Block(0)}, loss_fn)
        schedule.step(x, target=y)
        schedule.close()
        schedule.close()
        with self.assertRaisesRegex(RuntimeError, "this schedule is closed"):
            schedule.step(x, target=y)

    def test_chunks_on_one_rank(self):
        x, y = data()
        plan = plan_of("interleaved-1f1b", chunks=2)
        stages = {0: Block(0), 1: Block(1)}
        losses = []
        PlanSchedule(plan, stages, loss_fn).step(x, target=y, losses=losses)
        self.assertTrue(torch.equal(torch.stack(losses), torch.stack(Reference(2, MICROBATCHES).losses)))

    def test_refusals(self):
        module, (x, y) = {0: Block(0)}, data()
        refusals = (
            (lambda: PlanSchedule(plan_of(level="compute"), module, loss_fn), "of level compute.*level=\"comm\""),
            (lambda: PlanSchedule(cf.compile("1f1b", ranks=2, microbatches=2), module, loss_fn),
             "for 2 ranks, the group has 1 processes"),
            (lambda: PlanSchedule(plan_of(), {0: Block(0), 3: Block(1)}, loss_fn),
             r"holds stages \[0\] of the plan, but stages has modules for \[0, 3\]"),
            (lambda: PlanSchedule(plan_of(), module), "needs a loss_fn"),
            (lambda: PlanSchedule(plan_of(), module, loss_fn, weight_grad="no"), "\"autograd\" or \"store\""),
            (lambda: PlanSchedule(plan_of(data_parallel=2), module, loss_fn), "for 2 replicas"),
            (lambda: PlanSchedule(plan_of(), module, loss_fn, data_parallel=dist.group.WORLD, grad_reduce=print),
             "both sum over replicas: give one of them"),
            (lambda: PlanSchedule(plan_of(), {0: torch.nn.parallel.DistributedDataParallel(Block(0))}, loss_fn,
                                  grad_reduce=print), "stage 0 is wrapped in DistributedDataParallel"),
            (lambda: PlanSchedule(plan_of(), module, loss_fn).step(target=y), "needs the input of the 3"),
            (lambda: PlanSchedule(plan_of(), module, loss_fn).step(x[:2], target=y[:2]),
             r"shape \[2, 8\], which does not chunk into 3"),
            (lambda: PlanSchedule(plan_of(), module, loss_fn).step(x[:5], target=y[:5]),
             r"same size: leave the last batch out .*variable_shapes=True"),
            (lambda: PlanSchedule(plan_of(), module, loss_fn).step(x, target=y[:3]),
             "input 0 has 6 rows, target has 3"),
            (lambda: PlanSchedule(plan_of(), module, loss_fn).step(x.clone().requires_grad_(), target=y),
             "the input requires a gradient"),
            (lambda: PlanSchedule(plan_of(), {0: torch.nn.parallel.DistributedDataParallel(Block(0))}, loss_fn),
             "stage 0 is wrapped in DistributedDataParallel"),
        )
        stage = {"unit": "us", "stage": {"f": 5, "b": 9, "w": 5, "layers": 2}}
        refusals += ((lambda: PlanSchedule(plan_of(costs=stage, recompute="layers=1"), Block(0), loss_fn),
                      "R s0 m0 layers=1 .*: modules run their whole forward again: compile it with"),)
        for call, text in refusals:
            with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                call()
        with self.assertRaisesRegex(TypeError, "stages must be a dict .* is a Block"):
            PlanSchedule(plan_of(), Block(0), loss_fn)
        with self.assertRaisesRegex(TypeError, "stage 0 must be a torch.nn.Module, is a function"):
            PlanSchedule(plan_of(), {0: lambda x: x}, loss_fn)

    def test_what_pytorch_cannot_run(self):
        mixed = {"unit": "us", "stage": {"f": 5, "b": 9, "w": 5}, "microbatch_scale": [2, 0.5, 3]}
        for plan, text in (
                (cf.compile("dualpipe", ranks=2, microbatches=4), "two routes"),
                (plan_of(recompute="full"), "recomputes"),
                (plan_of(level="compute"), "level compute"),
                (cf.compile("auto", ranks=2, microbatches=3, costs=mixed, placement="linear"), "out of turn.*for_"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                as_torch_schedule(plan, [], loss_fn)

    def test_what_is_trained_may_change(self):
        module, (x, y) = Block(0), data()
        module.up.weight.requires_grad_(False)
        schedule = PlanSchedule(plan_of("interleaved-1f1b", chunks=2), {0: Block(1), 1: module}, loss_fn)
        schedule.step(x, target=y)
        self.assertIsNone(module.up.weight.grad)
        module.zero_grad(set_to_none=True)
        module.up.weight.requires_grad_(True)
        schedule.step(x, target=y)
        grad = module.up.weight.grad
        module.zero_grad(set_to_none=True)
        PlanSchedule(plan_of("interleaved-1f1b", chunks=2), {0: Block(1), 1: module}, loss_fn).step(x, target=y)
        self.assertTrue(torch.equal(grad, module.up.weight.grad))

    def test_recompute_under_autocast(self):
        x, y = data()
        module = Block(0)
        schedule = PlanSchedule(plan_of(recompute="full"), {0: module},
                                lambda output, target: loss_fn(output.float(), target))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            schedule.step(x, target=y)
        self.assertIsNotNone(module.up.weight.grad)

    def test_batch_norm_that_runs_twice_is_said(self):
        stages = {0: torch.nn.Sequential(Block(0), torch.nn.BatchNorm1d(WIDTH))}
        with self.assertWarnsRegex(UserWarning, "stage 0 has BatchNorm, and its forward runs twice"):
            PlanSchedule(plan_of(recompute="full"), stages, loss_fn)

    def test_one_step_at_a_time(self):
        x, y = data()
        said = []

        class Nosy(Block):
            def forward(self, x):
                def step():
                    try:
                        schedule.step(*data()[:1], target=y)
                    except RuntimeError as error:
                        said.append(str(error))
                if not said:
                    thread = threading.Thread(target=step)
                    thread.start()
                    thread.join()
                return super().forward(x)
        module = Nosy(0)
        schedule = PlanSchedule(plan_of(), {0: module}, loss_fn)
        losses = []
        schedule.step(x, target=y, losses=losses)
        self.assertEqual(said, ["rank 0: another thread is in a step of this schedule"])
        self.assertTrue(torch.equal(torch.stack(losses), torch.stack(Reference(1, MICROBATCHES).losses)))

    def test_a_failed_step_is_the_last(self):
        x, y = data()
        schedule = PlanSchedule(plan_of(), {0: torch.nn.Linear(3, 3)}, loss_fn)
        with self.assertRaises(StepError) as caught:
            schedule.step(x, target=y)
        error = caught.exception
        self.assertEqual((error.rank, error.index, error.instruction, error.stage, error.microbatch),
                         (0, 0, "F s0 m0", 0, 0))
        with self.assertRaisesRegex(RuntimeError, "an earlier step failed"):
            schedule.step(x, target=y)

    def test_names_in_profiles(self):
        from torch.profiler import profile
        x, y = data()
        for annotate, expected in ((True, ["PP:0F0", "PP:0B0", "PP:0F1", "PP:0B1", "PP:0F2", "PP:0B2",
                                           "PP:0REDUCE_GRAD", "PP:0STEP"]), (False, [])):
            schedule = PlanSchedule(plan_of(), {0: Block(0)}, loss_fn, annotate=annotate)
            with profile() as profiled:
                schedule.step(x, target=y)
            events = sorted((e.time_range.start, e.name) for e in profiled.events()
                            if e.name.startswith("PP:"))
            self.assertEqual([name for _, name in events], expected)

    def test_trace(self):
        x, y = data()
        plan = plan_of()
        schedule = PlanSchedule(plan, {0: Block(0)}, loss_fn)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.json")
            with self.assertRaisesRegex(RuntimeError, "no step"):
                schedule.trace(path)
            schedule.step(x, target=y)
            schedule.trace(path)
            self.assertEqual(os.listdir(folder), ["run.json"])
            with open(path) as file:
                document = json.load(file)
        slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
        self.assertEqual([event["name"] for event in slices], [i.op for i in plan.programs[0]])
        self.assertEqual(slices[1]["args"], {"index": 1, "stage": 0, "microbatch": 0})
        self.assertEqual(min(event["ts"] for event in slices), 0)
        ends = [event["ts"] + event["dur"] for event in slices]
        self.assertEqual(ends, sorted(ends))
        self.assertAlmostEqual(max(ends), document["otherData"]["makespan"], places=2)


if __name__ == "__main__":
    unittest.main()
