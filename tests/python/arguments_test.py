"""Wrong arguments: each is a ValueError or a TypeError that names the argument."""

import math
import pathlib
import tempfile
import unittest

import contraflow as cf

# Values that no argument takes, and some that a few do.
NEVER = (b"4", bytearray(b"4"), 1j, object(), {}, {"a": 1}, [None], [[1]], lambda: 0, int, "\ud800", "a\0b")
LONG = 10**5000
ODD = NEVER + (True, False, "", " ", "--help", "--ranks=3", "4\n", "\n", "%s", "x" * 100000, "é", math.nan,
               math.inf, -math.inf, 10**30, -10**30, LONG, 1e300, [], (), set(), "-1", -1)
# Keywords of compile, each with a word that stands in the errors about it.
KEYWORDS = {name: name for name in (
    "schedule", "ranks", "microbatches", "f", "b", "w", "bw", "fb", "comm", "split", "host_link", "overlap",
    "chunks", "data_parallel", "expert_parallel", "model", "capacity", "device", "memory_limit",
    "device_memory", "zero", "placement", "budget", "seed", "noise", "recompute", "offload", "partition",
    "level")}
KEYWORDS.update(costs="cost", for_="for")


class ArgumentsTest(unittest.TestCase):
    def refused(self, name, call, value, never=False):
        """Checks what comes of a call, unless it takes the value."""
        shown = "a number too long to show" if value is LONG else f"{value!r:.40}"
        try:
            call(value)
        except (ValueError, TypeError) as error:
            text = str(error)
            self.assertIsInstance(error, (cf.Error, TypeError), f"{name}={shown}: {text}")
            self.assertIn(name, text, shown)
            self.assertNotIn("C++", text)
            return text
        if never:
            self.fail(f"{name} takes {shown}")
        return None

    def test_odd_values_of_every_keyword(self):
        def compiled(keyword):
            given = dict(schedule="1f1b", ranks=2, microbatches=2)
            return lambda value: cf.compile(**{**given, keyword: value})

        for keyword, shown in KEYWORDS.items():
            for value in ODD:
                if keyword == "costs" and isinstance(value, dict):
                    continue
                never = any(value is odd for odd in NEVER)
                text = self.refused(shown, compiled(keyword), value, never)
                self.assertLess(len(text or ""), 1000)
        for keyword in ("ranks", "microbatches", "f", "memory_limit", "seed"):
            for value in (True, False, (1,), {1}, range(3)):
                text = self.refused(keyword, compiled(keyword), value, never=True)
                self.assertIn("must be a number or text, is of type", text)

    def test_values_that_look_like_options_are_shown_as_they_are(self):
        for keyword in ("schedule", "ranks", "level", "overlap", "costs"):
            with self.assertRaises(cf.Error) as caught:
                cf.compile(**{**dict(schedule="1f1b", ranks=2, microbatches=2), keyword: "--help"})
            self.assertIn("\"--help\"", str(caught.exception))

    def test_flags_of_compare(self):
        for value in ("", "true", 1, 0, None.__class__, []):
            with self.assertRaisesRegex(TypeError, "no_auto: must be True or False"):
                cf.compare(ranks=2, microbatches=2, no_auto=value)

    def test_a_budget_in_seconds(self):
        plan = cf.compile("auto", ranks=2, microbatches=4, comm=0.3, budget="1ms")
        for budget in (0.001, 1e-3, "0.001s"):
            self.assertEqual(cf.compile("auto", ranks=2, microbatches=4, comm=0.3, budget=budget), plan)
        cf.compile("auto", ranks=2, microbatches=4, budget=1e-5)
        with self.assertRaisesRegex(cf.Error, "budget: must be a finite number of seconds"):
            cf.compile("auto", ranks=2, microbatches=4, budget=math.nan)

    def test_methods(self):
        plan = cf.compile("1f1b", ranks=2, microbatches=2)
        methods = {
            "cost": lambda value: plan.simulate(None if isinstance(value, dict) else value),
            "f": lambda value: plan.simulate(f=value),
            "comm": lambda value: plan.explain(comm=value),
            "rank": lambda value: plan.stages_of(value),
            "width": lambda value: plan.grid(width=value),
            "semantics": lambda value: plan.verify(value),
            "form": lambda value: plan.to_torch_csv(form=value),
            "torch": lambda value: plan.to_torch_csv(torch=value),
            "layers": lambda value: plan.to_megatron_layout(value),
            "paths": lambda value: cf.Costs.from_profile(value if not isinstance(value, str) else [value, 1]),
        }
        for name, call in methods.items():
            for value in ODD:
                if name == "semantics" and value is None:
                    continue
                self.refused(name, call, value)
        for split in (-0.1, 1.1, math.nan, math.inf):
            with self.assertRaisesRegex(cf.Error, "split: must be in 0..1"):
                cf.Costs.from_profile("none", split=split)
        for path in (3, None, b"a\0b", object(), []):
            for call in (cf.Plan.load, plan.save, cf.Plan.from_torch_csv):
                with self.assertRaisesRegex(TypeError, "path"):
                    call(path)
        for name, form, what in (("run.csv", "python", "path: .* run.py"), ("run.csv", "toml", "path: .* run.toml"),
                                 ("run.toml", "python", "path: .*no TOML"), ("run.py", "compute", "form: must be")):
            with self.assertRaisesRegex(cf.Error, what):
                plan.to_torchtitan(name, layers=4, form=form)
        with self.assertRaisesRegex(TypeError, "plan: "):
            cf.diff(plan, None)

    def test_unknown_keywords(self):
        plan = cf.compile("1f1b", ranks=2, microbatches=2)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "order.csv"
            plan.to_torch_csv(path)
            for name, call in (("simulate", plan.simulate), ("explain", plan.explain),
                               ("compile", lambda **k: cf.compile("1f1b", ranks=2, microbatches=2, **k)),
                               ("from_torch_csv", lambda **k: cf.Plan.from_torch_csv(path, **k))):
                with self.assertRaisesRegex(TypeError, name + r".* unexpected keyword argument 'ff'"):
                    call(ff=3)
        with self.assertRaisesRegex(TypeError, "Costs.* unexpected keyword argument 'ranks'"):
            cf.Costs(ranks=3)

    def test_costs_that_are_no_costs(self):
        deep = []
        for _ in range(100000):
            deep = [deep]
        for wrong in ({1j: 2}, {"unit": b"us"}, {"unit": "us", "stage": {"f": math.nan}}, {"unit": deep},
                      {("a",): 1}, {"unit": "\ud800"}):
            with self.assertRaisesRegex(cf.Error, "^costs"):
                cf.Costs(wrong)


if __name__ == "__main__":
    unittest.main()
