"""To and from other systems and notebooks."""

import base64
import copy
import json
import os
import pathlib
import pickle
import pprint
import re
import runpy
import shlex
import subprocess
import tempfile
import types
import unittest
import xml.etree.ElementTree as xml

import contraflow as cf


class InteropTest(unittest.TestCase):
    def test_exports_are_those_of_the_tool(self):
        plan = cf.compile("zb-v", ranks=4, microbatches=8, costs="mixtral-8x7b-pp8", partition="even")
        interleaved = cf.compile("interleaved-1f1b", ranks=4, microbatches=8)
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            plan.save(folder / "plan.json")
            interleaved.save(folder / "interleaved.json")

            def said(to, *words, name="plan"):
                return subprocess.run(
                    [os.environ["CONTRAFLOW"], "export", folder / f"{name}.json", "--to", to, *words,
                     "-o", "-"],
                    check=True, capture_output=True,
                ).stdout.decode()

            self.assertEqual(plan.to_torch_csv(), said("torch-csv"))
            lowered = plan.to_torch_csv(form="compute_comms", torch="2.15")
            self.assertEqual(lowered, said("torch-csv", "--form=compute_comms", "--torch=2.15"))
            self.assertEqual(plan.to_dot(), said("dot"))
            self.assertEqual(
                interleaved.to_megatron_layout(layers=48),
                said("megatron-layout", "--layers", "48", name="interleaved"),
            )
            for one, name, layers, form in ((plan, "plan", None, "python"), (interleaved, "interleaved", 48, "flags"),
                                            (interleaved, "interleaved", "5,7,6x6", "toml")):
                file_name = f"run.{form if form == 'toml' else 'py'}"
                words = ["--form", form, *(["--layers", str(layers)] if layers else [])]
                for by in ("tool", "package"):
                    (folder / by).mkdir(exist_ok=True)
                subprocess.run([os.environ["CONTRAFLOW"], "export", f"../{name}.json", "--to", "torchtitan",
                                *words, "-o", file_name], check=True, capture_output=True, cwd=folder / "tool")
                before = os.getcwd()
                os.chdir(folder / "package")
                try:
                    self.assertIsNone(one.to_torchtitan(file_name, layers, form))
                finally:
                    os.chdir(before)
                for file in (file_name, "run.csv"):
                    self.assertEqual((folder / "package" / file).read_text(),
                                     (folder / "tool" / file).read_text())
            self.assertIsNone(plan.to_chrome_trace(folder / "trace.json"))
            self.assertEqual((folder / "trace.json").read_text(), said("chrome-trace"))
            self.assertEqual(plan.simulate().to_chrome_trace(), said("chrome-trace"))

    def test_the_function_for_torchtitan_sets_every_value(self):
        plan = cf.compile("zb-v", ranks=2, microbatches=4)
        with self.assertRaisesRegex(cf.Error, "; give `layers`, the number"):
            plan.to_torchtitan("run.py")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 'a "quoted" \\ name.py')
            plan.to_torchtitan(path, layers=9)
            names = runpy.run_path(path)
        config = types.SimpleNamespace(parallelism=types.SimpleNamespace())
        self.assertIs(names["with_plan"](config), config)
        got = vars(config.parallelism)
        self.assertEqual(got["pipeline_parallel_degree"], 2)
        self.assertEqual(got["pipeline_parallel_schedule"], "ZBVZeroBubble")
        self.assertEqual(got["pipeline_parallel_schedule_csv"], path[:-3] + ".csv")
        self.assertEqual(got["num_pp_microbatches"], 4)
        parts = got["module_fqns_per_model_part"]
        self.assertEqual(len(parts), 4)
        self.assertEqual(sum(parts, []), ["tok_embeddings", *(f"layers.{i}" for i in range(9)), "norm", "lm_head"])
        flags = dict(line.split(None, 1) for line in names["__doc__"].splitlines() if line.startswith("    --"))
        self.assertEqual({key[len("--parallelism."):] for key in flags}, set(got))
        self.assertEqual(shlex.split(flags["--parallelism.module_fqns_per_model_part"]), [",".join(part) for part in parts])
        self.assertEqual(shlex.split(flags["--parallelism.pipeline_parallel_schedule_csv"]), [path[:-3] + ".csv"])

    def test_notes_of_a_csv_are_warnings(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "order.csv")
            for text, note, makespan in (("0F0,0B0,0W0\n1F0,1BW0\n", "input gradient", 12),
                                         ("[0F0, 0F1]\n[1F0, 1F1]\n", "forwards alone", 6)):
                with open(path, "w") as file:
                    file.write(text)
                with self.assertWarnsRegex(UserWarning, note):
                    plan = cf.Plan.from_torch_csv(path, f=2, b=2, w=2)
                plan.verify()
                self.assertEqual(plan.makespan, makespan)

    def test_what_pytorch_cannot_have_is_refused(self):
        both_ways = cf.compile("dualpipe", ranks=4, microbatches=8)
        with self.assertRaisesRegex(cf.Error, "PyTorch"):
            both_ways.to_torch_csv()
        with self.assertRaisesRegex(cf.Error, "form: must be"):
            both_ways.to_torch_csv(form="comms")

    def test_what_a_csv_cannot_say_is_a_warning(self):
        plan = cf.compile("1f1b", ranks=2, microbatches=4, recompute="full")
        with self.assertWarnsRegex(UserWarning, "checkpoint"):
            plan.to_torch_csv()

    def test_csv_comes_back(self):
        plan = cf.compile("interleaved-1f1b", ranks=2, microbatches=4, f=1, b=2, w=3)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "order.csv")
            plan.to_torch_csv(path)
            again = cf.Plan.from_torch_csv(path, f=1, b=2, w=3)
            again.verify()
            self.assertEqual(again.programs, plan.programs)
            self.assertEqual(again.makespan, plan.makespan)
            with open(path, "a") as file:
                file.write("3F0\n")
            with self.assertRaisesRegex(cf.Error, "order.csv: row 3"):
                cf.Plan.from_torch_csv(path)

    def test_messages_of_a_csv_are_proven_as_they_are(self):
        # Rank 0 sends micro-batch 1 first, and rank 1 takes 0 first.
        crossed = ("0F0,0F1,0SEND_F1,0SEND_F0,0RECV_B0,0B0,0RECV_B1,0B1\n"
                   "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "crossed.csv")
            with open(path, "w") as file:
                file.write(crossed)
            with self.assertRaises(cf.Unsound) as caught:
                cf.Plan.from_torch_csv(path).verify()
            self.assertEqual(caught.exception.findings[0].check, "message")
            cf.Plan.from_torch_csv(path, remake_comm=True).verify()
        plan = cf.compile("1f1b", ranks=2, microbatches=4)
        self.assertEqual(plan.semantics, "rank")
        for semantics in ("rank", "pair", "edge", "buffered"):
            plan.verify(semantics)
        with self.assertRaisesRegex(cf.Error, "rank, pair, edge"):
            plan.verify("edges")

    def test_pictures(self):
        plan = cf.compile("dualpipe", ranks=4, microbatches=8)
        html = plan._repr_html_()
        image = re.search(r"data:image/svg\+xml;base64,([^\"]*)", html).group(1)
        drawing = base64.b64decode(image).decode()
        self.assertEqual(drawing, plan.to_svg())
        xml.fromstring(drawing)
        self.assertIn("dualpipe: 4 ranks", html)
        self.assertIn(str(plan)[6:-1], plan.to_html())
        self.assertIn("rank 3", plan.grid())
        self.assertGreater(plan.grid(width=40).count("rank 3"), 1)  # in bands
        with self.assertRaisesRegex(cf.Error, "width: must be in 40"):
            plan.grid(width=3)
        large = cf.compile("1f1b", ranks=32, microbatches=128)
        self.assertLess(len(large._repr_html_()), 200)
        document = json.loads(plan.to_json())
        del document["programs"][0][-1]
        self.assertIn("not sound", cf.Plan.from_json(json.dumps(document))._repr_html_())
        table = cf.compare(ranks=2, microbatches=2, no_auto=True)._repr_html_()
        self.assertEqual(table.count("<tr>"), table.count("</tr>"))
        self.assertIn("<td>zb-v</td>", table)

    def test_copies_and_pickles(self):
        plan = cf.compile("auto", ranks=2, microbatches=4, comm=0.5, budget="10ms")
        for thing in (plan, plan.programs[0][1], cf.Costs("moe-unit")):
            self.assertEqual(pickle.loads(pickle.dumps(thing)), thing)
            self.assertEqual(copy.deepcopy(thing), thing)
        self.assertIn("auto", pprint.pformat({"a" * 50: plan, "b" * 50: plan}))

    def test_what_is_assumed_of_costs_is_a_warning(self):
        with self.assertWarnsRegex(UserWarning, "bw") as caught:
            costs = cf.Costs({"unit": "ms", "stage": {"f": 1, "bw": 3}}, split=0.25)
        self.assertEqual(caught.filename, __file__)
        self.assertIn("b 0.75, w 2.25", repr(costs))
        with self.assertWarns(UserWarning) as caught:
            cf.compile("1f1b", ranks=2, microbatches=2, f=1, bw=3)
        self.assertEqual(caught.filename, __file__)


if __name__ == "__main__":
    unittest.main()
