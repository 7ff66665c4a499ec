"""The checks and benchmarks for one GPU also run on a CPU, over gloo and with tiny layers."""

import json
import os
import pathlib
import subprocess
import sys
import unittest

try:
    import torch
except ImportError:
    print("skipped: no torch")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONTRAFLOW = os.environ["CONTRAFLOW"]
HAS_RMS_NORM = hasattr(torch.nn, "RMSNorm")  # torch 2.4, which the layers need


def lines_of(script, *arguments):
    """The JSON lines that a script prints."""
    done = subprocess.run([sys.executable, str(ROOT / script), *arguments], capture_output=True, text=True, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise AssertionError(f"{script} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


class OnACpu(unittest.TestCase):
    def test_checks(self):
        lines = lines_of("tests/python/torch_gpu.py", CONTRAFLOW, "--backend", "gloo", "--megabytes", "1")
        gradients = [line for line in lines if line["figure"].startswith(("gradients", "messages"))]
        self.assertEqual(len(gradients), 14)
        self.assertTrue(all(line["value"] < 1e-5 for line in gradients))
        hidden = [line for line in lines if line["figure"] == "all-to-alls hidden"]
        self.assertEqual([line["schedule"] for line in hidden], ["1f1b", "zb-1p", "zb-v", "dualpipe"])

    @unittest.skipUnless(HAS_RMS_NORM, "needs torch 2.4")
    def test_schedules(self):
        lines = lines_of("tools/bench/torch_schedules.py", CONTRAFLOW, "--small", "--microbatches", "8",
                         "--schedules", "zb-1p,1f1b,dualpipe,zb-v")
        self.assertEqual([line["measured"] for line in lines],
                         ["one stage in a pipeline, us", "zb-1p", "1f1b", "dualpipe", "zb-v"])
        for line in lines[1:]:
            self.assertGreater(line["step_ms"], 0)
            self.assertGreater(line["predicted_ms"], 0)

    @unittest.skipUnless(HAS_RMS_NORM, "needs torch 2.4")
    def test_layers(self):
        lines = lines_of("tools/bench/layer_times.py", "--small")
        self.assertEqual([line["measured"] for line in lines[1:]],
                         [f"eager {shape} {half}" for shape in ("dense", "moe", "latent")
                          for half in ("attention", "mlp")])
        self.assertTrue(all(line["F"] > 0 for line in lines[1:]))


if __name__ == "__main__":
    unittest.main()
