"""Predicted runs, as figures and arrays, beside what the command line says."""

import csv
import io
import json
import os
import subprocess
import tempfile
import unittest
from xml.etree import ElementTree

import contraflow as cf

try:
    import numpy as np
except ModuleNotFoundError:
    np = None
try:
    import pandas as pd
except ModuleNotFoundError:
    pd = None


def tool(*words):
    """Output of `contraflow`."""
    return subprocess.run(
        [os.environ["CONTRAFLOW"], *words], check=True, capture_output=True, text=True
    ).stdout


@unittest.skipIf(np is None, "needs numpy")
class SimulationTest(unittest.TestCase):
    def test_arrays_are_the_run(self):
        plan = cf.compile("1f1b", ranks=3, microbatches=4, f=2, b=3, w=1, comm=0.5)
        run = plan.simulate()
        t = run.timeline
        self.assertEqual(len(t["op"]), sum(map(len, plan.programs)))
        for column in range(0, len(t["op"]), 7):
            instruction = plan.programs[t["rank"][column]][t["index"][column]]
            self.assertEqual(t["op"][column], instruction.op)
            self.assertEqual(t["stage"][column], instruction.stage)
            microbatch = instruction.microbatch
            self.assertEqual(t["microbatch"][column], -1 if microbatch is None else microbatch)
        self.assertEqual(t["end"].max(), run.makespan)
        took = t["end"] - t["start"]
        for op, lane, time in (("F", "compute", 2), ("BW", "compute", 4), ("SEND_F", "send", 0.5)):
            self.assertEqual(set(took[t["op"] == op]), {time})
            self.assertEqual(set(t["lane"][t["op"] == op]), {lane})
        busy = [took[(t["rank"] == r) & (t["lane"] == "compute")].sum() for r in range(3)]
        np.testing.assert_array_equal(run.busy, busy)
        np.testing.assert_array_equal(run.bubble, run.makespan - run.busy)
        np.testing.assert_array_equal(run.peak_activations, [3, 2, 1])
        self.assertAlmostEqual(run.bubble_ratio, run.bubble.sum() / (3 * run.makespan))
        rank, index = run.critical_path[0]
        self.assertEqual(t["start"][(t["rank"] == rank) & (t["index"] == index)], [0])

    def test_arrays_are_those_of_numpy(self):
        plan = cf.compile("dualpipe", ranks=4, microbatches=8, costs="deepseek-v3-h800")
        run = plan.simulate()
        count = sum(map(len, plan.programs))
        arrays = {name: getattr(run, name)
                  for name in ("busy", "bubble", "all_to_all", "exposed", "peak_activations", "peak_bytes")}
        for name, array in arrays.items():
            self.assertEqual(array.dtype, np.int64 if name.startswith("peak") else np.float64, name)
            self.assertEqual(array.tolist(), [rank.get(name, 0) for rank in run.to_dict()["ranks"]], name)
        self.assertGreater(len(set(arrays["bubble"].tolist())), 1)
        for name, column in run.timeline.items():
            wanted = np.dtype({"op": "<U10", "lane": "<U10", "start": "f8", "end": "f8"}.get(name, "i4"))
            self.assertEqual((column.dtype.kind, len(column)), (wanted.kind, count), name)
            if wanted.kind != "U":
                self.assertEqual(column.dtype, wanted, name)
            arrays[name] = column
        for name, array in arrays.items():
            self.assertEqual(array.strides, (array.dtype.itemsize,), name)
            self.assertEqual(array.nbytes, len(array) * array.dtype.itemsize, name)
            self.assertTrue(array.flags.c_contiguous and array.flags.aligned and array.flags.owndata, name)
            self.assertEqual(array.copy().tolist(), array.tolist(), name)
            self.assertEqual(np.frombuffer(array.tobytes(), array.dtype).tolist(), array.tolist(), name)
            self.assertIs(np.ascontiguousarray(array), array, name)

    @unittest.skipIf(pd is None, "needs pandas")
    def test_frames(self):
        plan = cf.compile("1f1b", ranks=3, microbatches=4, comm=0.5)
        frame = pd.DataFrame(plan.simulate().timeline)
        self.assertEqual(len(frame), sum(map(len, plan.programs)))
        for row in frame.itertuples():
            instruction = plan.programs[row.rank][row[2]]
            self.assertEqual((row.op, row.stage), (instruction.op, instruction.stage))
        longest = frame[frame.lane == "compute"].groupby("rank")["end"].max()
        self.assertEqual(longest.tolist(), [max(frame.end[(frame["rank"] == r) & (frame.lane == "compute")])
                                            for r in range(3)])
        rows = pd.DataFrame(cf.compare(ranks=2, microbatches=4, no_auto=True).columns)
        self.assertEqual(rows.schedule[rows.advised.astype(bool)].tolist(),
                         [cf.compare(ranks=2, microbatches=4, no_auto=True).best.schedule])
        self.assertFalse(rows.map(lambda cell: isinstance(cell, (list, dict))).any(axis=None))

    def test_picture_of_a_notebook(self):
        plan = cf.compile("dualpipe", ranks=4, microbatches=8, costs="deepseek-v3-h800", level="component")
        run = plan.simulate()
        html = run._repr_html_()
        root = ElementTree.fromstring("<div>" + html + "</div>")
        self.assertNotIn("<script", html)
        self.assertIn("dualpipe: 4 ranks", root.find("p").text)
        for word in ("makespan", "compute idle"):
            self.assertIn(word, root.find("p").text)
        rows = [[cell.text for cell in row] for row in root.iter("tr")]
        self.assertEqual(rows[0][:3], ["rank", "busy", "compute idle"])
        self.assertIn("exposed", rows[0])
        self.assertEqual([row[0] for row in rows[1:]], ["0", "1", "2", "3"])
        peaks = [int(row[rows[0].index("activations")]) for row in rows[1:]]
        self.assertEqual(peaks, run.peak_activations.tolist())
        printed = [line.split() for line in str(run).splitlines()[:5]]
        self.assertEqual([" ".join(row).split() for row in rows], printed)
        large = cf.compile("1f1b", ranks=200, microbatches=2).simulate()._repr_html_()
        self.assertLess(large.count("<tr>"), 80)
        self.assertIn("<td style=\"text-align: right\">199</td>", large)

    def test_other_costs(self):
        plan = cf.compile("gpipe", ranks=4, microbatches=8)
        self.assertEqual(plan.simulate().makespan, plan.makespan)
        longer = plan.simulate(f=2, comm=1)
        self.assertGreater(longer.makespan, plan.makespan)
        self.assertEqual(plan.simulate(cf.Costs(f=2, b=1, w=1, comm=1)).makespan, longer.makespan)
        self.assertEqual(plan.simulate(costs=cf.Costs(f=2, b=1, w=1), comm=1).makespan, longer.makespan)

    def test_messages_wait_in_queues(self):
        plan = cf.compile("dualpipe", ranks=4, microbatches=8, comm=0.3)
        self.assertEqual(plan.simulate(semantics="edge").makespan, plan.makespan)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.json")
            plan.save(path)
            for semantics in ("pair", "rank"):
                longer = plan.simulate(semantics=semantics)
                self.assertGreater(longer.makespan, plan.makespan)
                said = json.loads(tool("simulate", path, "--semantics", semantics, "--json"))
                self.assertEqual(said["makespan"], longer.makespan)
                ranks = plan.explain(semantics=semantics)["ranks"]
                self.assertIn("queue", {cause["cause"] for rank in ranks for cause in rank["causes"]})
        for level, words in (("compute", "semantics: the plan has no messages"),
                             ("component", "semantics: must be left out")):
            other = cf.compile("dualpipe", ranks=4, microbatches=8, costs="moe-unit", level=level)
            with self.assertRaisesRegex(cf.Error, words):
                other.simulate(semantics="rank")
        with self.assertRaisesRegex(cf.Error, "semantics"):
            plan.explain(semantics="two")

    def test_same_as_the_tool(self):
        plan = cf.compile("dualpipe", ranks=4, microbatches=8, costs="deepseek-v3-h800")
        with tempfile.TemporaryDirectory() as folder:
            path, trace = os.path.join(folder, "plan.json"), os.path.join(folder, "trace.json")
            plan.save(path)
            said = json.loads(tool("simulate", path, "--json"))
            run = plan.simulate()
            self.assertEqual({**said, **run.to_dict()}, said)
            self.assertEqual(said["makespan"], run.makespan)
            self.assertEqual([r["peak_bytes"] for r in said["ranks"]], list(run.peak_bytes))
            tool("simulate", path, "--trace", trace)
            with open(trace) as file:
                expected = file.read()
            run.to_chrome_trace(trace)
            with open(trace) as file:
                self.assertEqual(file.read(), expected)
            self.assertIn(str(run), tool("simulate", path))


    def test_idle_time_is_explained(self):
        plan = cf.compile("1f1b", ranks=3, microbatches=4, comm=0.5, level="compute")
        explained = plan.explain()
        for rank, bubble in zip(explained["ranks"], plan.simulate().bubble):
            self.assertAlmostEqual(rank["bubble"], bubble)
            self.assertAlmostEqual(sum(cause["time"] for cause in rank["causes"]), bubble)
        costs = {entry["cost"] for entry in explained["sensitivity"]}
        self.assertLessEqual({"f", "comm"}, costs)
        with self.assertRaisesRegex(cf.Error, "rank: must be in 0..2"):
            plan.explain(rank=3)


class CompareTest(unittest.TestCase):
    def test_same_as_the_tool(self):
        options = dict(ranks=4, microbatches=8, comm=0.5, memory_limit="1.5x", budget="10ms")
        comparison = cf.compare(**options)
        words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        said = json.loads(tool("compare", *words, "--json"))
        self.assertEqual(comparison.rows, said["rows"])
        self.assertEqual(comparison.advice, said["advice"]["text"])
        self.assertEqual(str(comparison), tool("compare", *words))
        fit = [row["schedule"] for row in said["rows"] if "makespan" in row]
        self.assertEqual([name.split(" ")[0] for name in comparison.plans], fit)
        self.assertEqual(comparison.best.schedule, said["advice"]["schedule"])
        for plan, row in zip(comparison.plans.values(), (r for r in said["rows"] if "makespan" in r)):
            self.assertEqual(plan.makespan, row["makespan"])

    def test_columns(self):
        for options in (dict(ranks=4, microbatches=8, comm=0.5, memory_limit="1x"),
                        dict(ranks=2, microbatches=3, costs="mixtral-8x7b-pp8", schedules="1f1b,zb-v,dualpipe", for_="torch")):
            comparison = cf.compare(no_auto=True, **options)
            columns = comparison.columns
            lines = list(csv.reader(io.StringIO(comparison.to_csv())))
            self.assertEqual(list(columns), lines[0])
            for at, row in enumerate(comparison.rows):
                cells = {name: column[at] for name, column in columns.items()}
                for name in set(row) & set(cells):
                    self.assertEqual(cells[name], row[name], name)
                self.assertEqual("rejected" in row, cells["makespan"] is None)
                self.assertIs(cells["fits"], row.get("fits"))
                shown = ["" if cell is None else str(int(cell)) if cell is True or cell is False else cell
                         for cell in cells.values()]
                for cell, text in zip(shown, lines[at + 1]):
                    self.assertEqual(cell, text) if isinstance(cell, str) else self.assertEqual(cell, float(text))
            self.assertEqual(len(columns["schedule"]), len(comparison.rows))
            advised = columns["schedule"][columns["advised"].index(True)]
            self.assertEqual(advised, comparison.best.schedule)
        self.assertIn(None, columns["makespan"])

    def test_nothing_fits(self):
        small = dict(costs="mixtral-8x7b-pp8", device_memory="1GB", no_auto=True)
        none = cf.compare(ranks=8, microbatches=8, **small)
        self.assertIsNone(none.best)
        self.assertFalse(any(row.get("fits", False) for row in none.rows))
        self.assertIn("no schedule fits device_memory", none.advice)

    def test_what_none_takes(self):
        with self.assertRaisesRegex(cf.Error, "^recompute: there is no stage 9, no schedule makes"):
            cf.compare(ranks=4, microbatches=8, recompute=[9], no_auto=True)

    def test_one_size_at_a_time(self):
        with self.assertRaisesRegex(cf.Error, "microbatches: one number"):
            cf.compare(ranks=4, microbatches="8,16")


if __name__ == "__main__":
    unittest.main()
