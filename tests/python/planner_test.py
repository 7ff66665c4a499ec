"""cf.plan beside `contraflow plan`: the same rows, plans and costs; its errors."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import contraflow as cf

MODEL = {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
         "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}
REQUEST = {"gpu": "h100", "gpus": 8, "global_batch": 64, "seq": 4096}


class PlannerTest(unittest.TestCase):
    def test_as_the_command_line_has_it(self):
        plans = cf.plan(model=MODEL, **REQUEST, only=["1f1b", "zb-1p"], fix={"pp": 4}, top=3)
        with tempfile.TemporaryDirectory() as folder:
            config = os.path.join(folder, "config.json")
            with open(config, "w") as file:
                json.dump(MODEL, file)
            words = [os.environ["CONTRAFLOW"], "plan", "--model", config, "--gpu", "h100", "--gpus", "8",
                     "--global-batch", "64", "--seq", "4096", "--only", "1f1b,zb-1p", "--fix", "pp=4", "--top", "3"]

            def tool(*more):
                return subprocess.run([*words, *more], check=True, capture_output=True, text=True).stdout

            said = json.loads(tool("--json", "-o", folder))
            self.assertEqual(plans.rows, said["rows"])
            self.assertEqual(plans.assumptions, said["assumptions"])
            self.assertEqual(plans.rejected, said["rejected"])
            self.assertEqual(str(plans), tool())
            self.assertEqual(plans.best.to_json(), cf.Plan.load(os.path.join(folder, "plan.json")).to_json())
            with open(os.path.join(folder, "costs.json")) as file:
                self.assertEqual(plans.costs_of(), file.read())
            again = cf.plan(model=config, **REQUEST, only="1f1b,zb-1p", fix="pp=4", top=3)
            self.assertEqual(str(again), str(plans))
        self.assertEqual(len(plans), 3)
        for row, plan in zip(plans.rows, plans.plans):
            self.assertEqual(row["pp"], plan.ranks)
            plan.verify()
            self.assertAlmostEqual(row["step"], plan.makespan / {"us": 1e6, "ns": 1e9, "ms": 1e3}[plan.unit])
        with self.assertRaises(IndexError):
            plans.costs_of(3)

    def test_keys_of_fix_are_words_of_python(self):
        plans = cf.plan(model=MODEL, **REQUEST, only="1f1b", fix={"pp": 2, "micro_batch": 2})
        self.assertEqual({row["micro_batch"] for row in plans.rows}, {2})

    def test_files_of_a_framework(self):
        plans = cf.plan(model=MODEL, **REQUEST, for_="megatron", fix={"pp": 2}, budget="1s")
        self.assertLessEqual({row["schedule"] for row in plans.rows}, {"1f1b", "interleaved-1f1b"})
        with tempfile.TemporaryDirectory() as folder:
            for row, found in enumerate(plans.rows):
                best = pathlib.Path(folder) / str(row)
                plans.write(best, row)
                self.assertEqual(sorted(os.listdir(best)), ["command.txt", "costs.json", "megatron.args", "plan.json"])
                self.assertIn(f"--pipeline-model-parallel-size {found['pp']}\n", (best / "megatron.args").read_text())
                self.assertEqual((best / "costs.json").read_text(), plans.costs_of(row))
            with self.assertRaises(IndexError):
                plans.write(folder, len(plans))

    def test_errors(self):
        for changed, said in (({"gpus": 0}, "^gpus: 0 is too small"), ({"gpu": "x9"}, "^gpu: unknown GPU .x9."),
                              ({"fix": {"tp": 3}}, "^fix: tp=3 are 3 GPUs"), ({"only": ["1f1b", "x"]}, "unknown schedule .x."),
                              ({"model": {"model_type": "x"}}, "^model: /model_type: unknown"),
                              ({"model": {"hidden_size": object()}}, "^model: must hold numbers"),
                              ({"for_": "x"}, "^for: must be megatron.torch.torchtitan, is"), ({"model": "/none.json"}, "^/none.json: cannot be read"),
                              ({"memory": "1GB"}, "^gpus: no configuration of 8 GPUs fits 1.00 GB")):
            with self.assertRaisesRegex(cf.Error, said):
                cf.plan(**{"model": MODEL, **REQUEST, **changed})
        with self.assertRaises(TypeError):
            cf.plan(model=MODEL, gpu="h100", gpus=8)


if __name__ == "__main__":
    unittest.main()
