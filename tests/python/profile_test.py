"""Costs of measured runs."""

import json
import pathlib
import tempfile
import unittest

import contraflow as cf


def kineto(rank, events):
    """A trace as PyTorch's profiler writes it: (name, begin, duration) in microseconds."""
    return json.dumps({
        "distributedInfo": {"rank": rank},
        "traceEvents": [
            {"ph": "X", "cat": "user_annotation", "name": name, "pid": rank, "tid": 1, "ts": ts,
             "dur": dur}
            for name, ts, dur in events
        ],
    })


class ProfileTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_traces_of_pytorch(self):
        paths = []
        for stage in (0, 1):
            events = []
            for m in range(4):
                # B is the full backward there.
                events += [(f"PP:{stage}F{m}", 100 * m, 10 + stage), (f"PP:{stage}I{m}", 100 * m + 30, 20),
                           (f"PP:{stage}W{m}", 100 * m + 60, 15)]
            paths.append(self.folder / f"trace_rank{stage}.json")
            paths[-1].write_text(kineto(stage, events))
        plan = cf.compile("zb-1p", ranks=2, microbatches=4)
        costs = cf.Costs.from_kineto(paths, plan=plan)
        stages = json.loads(costs.to_json())["stages"]
        self.assertEqual([(s["f"], s["b"], s["w"]) for s in stages], [(10, 20, 15), (11, 20, 15)])
        self.assertEqual(costs.unit, "us")
        again = cf.compile("zb-1p", ranks=2, microbatches=4, costs=costs)
        self.assertEqual(again.makespan, plan.simulate(costs).makespan)

    def test_own_traces_and_the_log(self):
        plan = cf.compile("zb-1p", ranks=2, microbatches=4,
                          costs={"unit": "ms", "stage": {"f": 3, "b": 4, "w": 2}})
        path = self.folder / "trace.json"
        plan.to_chrome_trace(path)
        with self.assertLogs("contraflow", "INFO") as log:
            costs = cf.Costs.from_profile(path, "trace", plan=plan)
        self.assertIn("median", log.output[0])
        self.assertAlmostEqual(plan.simulate(costs).makespan, plan.makespan * 1000, delta=0.01)

    def test_errors_name_the_file_and_the_keyword(self):
        path = self.folder / "x.json"
        path.write_text("{")
        with self.assertRaisesRegex(cf.Error, "x.json"):
            cf.Costs.from_kineto([path])
        with self.assertRaisesRegex(cf.Error, "split: must be"):
            cf.Costs.from_kineto([path], split=2)
        with self.assertRaisesRegex(cf.Error, "paths"):
            cf.Costs.from_kineto([])
        with self.assertRaisesRegex(cf.Error, "kineto"):
            cf.Costs.from_profile(path, "kinet")


if __name__ == "__main__":
    unittest.main()
