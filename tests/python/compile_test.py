"""Keywords mean what the options of the command line mean, and are as well guarded."""

import json
import os
import pathlib
import signal
import tempfile
import threading
import unittest

import numpy

import contraflow as cf


class CompileTest(unittest.TestCase):
    def test_costs_may_come_in_every_form(self):
        times = {"unit": "ms", "stage": {"f": 1, "b": 2, "w": 3}}
        plan = cf.compile("1f1b", ranks=2, microbatches=4, costs=times)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "costs.json"
            path.write_text(json.dumps(times))
            for costs in (cf.Costs(times), path, str(path), cf.Costs(path), cf.Costs(cf.Costs(times))):
                self.assertEqual(cf.compile("1f1b", ranks=2, microbatches=4, costs=costs), plan)
            costs = cf.Costs(times)
            costs.save(str(path))
            self.assertEqual(cf.Costs(path), costs)
        over = cf.compile("1f1b", ranks=2, microbatches=4, costs=times, w=1)
        self.assertEqual(over, cf.compile("1f1b", ranks=2, microbatches=4, costs=cf.Costs(times, w=1)))
        self.assertLess(over.makespan, plan.makespan)
        measured = {"unit": "ms", "stage": dict(zip("fbw", numpy.array([1, 2, 3], numpy.float32)))}
        self.assertEqual(cf.compile("1f1b", ranks=2, microbatches=4, costs=measured), plan)
        for wrong in (float("nan"), object()):
            with self.assertRaisesRegex(cf.Error, "^costs: "):
                cf.compile("1f1b", ranks=2, microbatches=4, costs={"stage": {"f": wrong}})
        self.assertEqual(cf.compile("1f1b", ranks=2, microbatches=4, f=1, b=1, w=1).unit, "unit")

    def test_values_may_be_numbers_or_text(self):
        def auto(**options):
            return cf.compile("auto", ranks=4, microbatches=8, budget="10ms", **options)

        self.assertEqual(auto(memory_limit="1x"), auto(memory_limit=4))
        self.assertEqual(
            cf.compile("auto", ranks=4, microbatches=8, budget=0.01), auto(memory_limit=None)
        )
        shortest = min((auto(placement=p) for p in ("linear", "v")), key=lambda p: p.makespan)
        self.assertEqual(auto(placement=["linear", "v"]), shortest)
        model = cf.Costs("mixtral-8x7b-pp8")
        kept = cf.compile("1f1b", ranks=8, microbatches=8, costs=model, device_memory=80e9, recompute=[0, 1])
        text = cf.compile("1f1b", ranks=8, microbatches=8, costs=model, device_memory="80GB", recompute="0-1")
        self.assertEqual(kept, text)

    def test_schedules_have_any_spelling(self):
        for spelling, name in {"1F1B": "1f1b", "DualPipe": "dualpipe", "ZBVZeroBubble": "zb-v"}.items():
            self.assertEqual(cf.compile(spelling, ranks=2, microbatches=4).schedule, name)
        self.assertEqual(cf.compile("Auto", ranks=2, microbatches=4, budget="1ms").schedule, "auto")
        with self.assertRaisesRegex(cf.Error, 'unknown schedule "dualpip" .did you mean "dualpipe"'):
            cf.compile("dualpip", ranks=2, microbatches=4)

    def test_numbers_without_their_unit_are_refused(self):
        model = dict(ranks=8, microbatches=8, costs="mixtral-8x7b-pp8")
        with self.assertRaisesRegex(cf.Error, "device_memory: is 80 bytes.* did you mean 80GB"):
            cf.compile("1f1b", device_memory=80, **model)
        with self.assertRaisesRegex(cf.Error, 'memory_limit: .*did you mean "0.6x"'):
            cf.compile("1f1b", memory_limit=0.6, **model)

    def test_errors_speak_of_keywords(self):
        wrong = {
            "memory_limit: must be": dict(memory_limit="1q"),
            "unknown cost profile \"deepsek\"": dict(costs="deepsek"),
            "ranks: must be in 1..16384": dict(ranks=0),
            "ranks: must be a whole number": dict(ranks=2.5),
            "budget: must be a time": dict(budget="soon"),
            "recompute": dict(recompute=[-1]),
            "recompute: must not be empty": dict(recompute=[]),
            "unknown placement \"1\"": dict(placement=[1]),
        }
        for text, options in wrong.items():
            with self.assertRaises(cf.Error) as caught:
                cf.compile("auto", **{"ranks": 4, "microbatches": 8, **options})
            self.assertIn(text, str(caught.exception))
            self.assertNotIn("--", str(caught.exception))
        with self.assertRaisesRegex(cf.Error, "1f1b"):
            cf.compile("1f1d", ranks=4, microbatches=8)
        with self.assertRaises(TypeError):
            cf.compile("1f1b", ranks=4, microbatches=8, memory=3)
        with self.assertRaises(TypeError):
            cf.compile("1f1b", ranks=4, microbatches=8, costs=3)

    def test_ctrl_c_ends_a_search(self):
        # Without an interrupt it takes many minutes.
        search = dict(comm=0.7, memory_limit="1x", noise=0.2, budget="7m")
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()  # and runs, since the search leaves other threads alone
        with self.assertRaises(KeyboardInterrupt):
            cf.compile("auto", ranks=8, microbatches=48, **search)
        timer.join()


if __name__ == "__main__":
    unittest.main()
