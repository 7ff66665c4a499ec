"""train.py of `contraflow plan --for torch` trains a small model of Hugging Face in four processes, with experts over two
of them, with replicas that share the optimizer's state, and over all as a pipeline. Needs transformers 5 and torch 2.2."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

import torch_model  # noqa: F401  (ends with 77 where there is no torch)

try:
    import transformers
    from torch.distributed.device_mesh import init_device_mesh  # noqa: F401
    transformers.GptOssConfig
except (ImportError, AttributeError):
    print("skipped: needs transformers 5 and torch 2.2")
    sys.exit(77)

from torch_examples_test import launch

MODEL = {"model_type": "mixtral", "hidden_size": 1024, "intermediate_size": 2048, "vocab_size": 32000,
         "num_attention_heads": 16, "num_key_value_heads": 4, "num_hidden_layers": 8, "num_local_experts": 4,
         "num_experts_per_tok": 2}


class LaunchTest(unittest.TestCase):
    def train(self, fixed, schedule):
        """Output of the rank that prints, and the plan."""
        with tempfile.TemporaryDirectory() as folder:
            config, best = os.path.join(folder, "config.json"), os.path.join(folder, "best")
            with open(config, "w") as file:
                json.dump(MODEL, file)
            subprocess.run([os.environ["CONTRAFLOW"], "plan", "--model", config, "--gpu", "h100", "--gpus", "4", "--seq",
                            "4096", "--global-batch", "8", "--for", "torch", "--fix", fixed, "--only", schedule,
                            "--budget", "1s", "--top", "1", "-o", best], check=True, stdout=subprocess.DEVNULL)
            script = os.path.join(best, "train.py")
            with open(script) as file:
                self.assertLessEqual(len(file.readlines()), 60)
            with open(os.path.join(best, "plan.json")) as file:
                plan = json.load(file)
            printed = launch(4, script, config, "--tiny", "--steps", "6")
        losses = [float(loss) for loss in re.findall(r"step \d+ loss (\S+)", printed[0])]
        self.assertEqual(len(losses), 6)
        self.assertLess(losses[-1], losses[0] - 0.2)
        self.assertEqual("".join(printed[1:]).count("loss"), 0)
        return plan

    def test_experts(self):
        plan = self.train("pp=2,ep=2,micro-batch=1", "dualpipe")
        self.assertEqual((plan["ranks"], plan["expert_parallel"], len(plan["routes"])), (2, 2, 2))

    def test_replicas(self):
        plan = self.train("pp=2,ep=1,micro-batch=2", "zb-v")
        self.assertEqual((plan["ranks"], plan["data_parallel"]), (2, 2))

    def test_pipeline(self):
        self.assertEqual(self.train("pp=4", "auto")["ranks"], 4)


if __name__ == "__main__":
    unittest.main()
