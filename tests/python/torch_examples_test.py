"""The examples for contraflow.torch run under a launcher as torchrun's: those of the README and the tutorial,
and the training scripts, whose loss falls; that of Hugging Face where transformers are."""

import importlib.util
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest

import torch_model  # noqa: F401  (ends with 77 where there is no torch)

PYTHON = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "python")
ROOT = os.path.join(PYTHON, "..", "..")
TUTORIAL = os.path.join(ROOT, "tools", "guide", "tutorials", "dualpipe-in-pytorch.md")
TEXT = os.path.join(ROOT, "tools", "profile", "README.md")


def launch(ranks, *arguments):
    """Output of each rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    running = []
    for rank in range(ranks):
        environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks),
                           MASTER_ADDR="127.0.0.1", MASTER_PORT=port, OMP_NUM_THREADS="1")
        running.append(subprocess.Popen([sys.executable, *arguments], env=environment, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    printed = [process.communicate(timeout=200)[0] for process in running]
    for process, text in zip(running, printed):
        assert process.returncode == 0, text
    return printed


class ExamplesTest(unittest.TestCase):
    def example(self, page):
        with open(page) as text:
            example, = re.findall(r"```python\n(.*?)```", text.read(), re.DOTALL)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "example.py")
            with open(path, "w") as script:
                script.write(example)
            return launch(2, path)

    def test_tutorial(self):
        printed = self.example(TUTORIAL)
        self.assertIn("rank 0: 0 losses, gradients of stages [0]", printed[0])
        self.assertIn("rank 1: 8 losses, gradients of stages [1]", printed[1])

    def test_readme(self):
        printed = self.example(os.path.join(ROOT, "README.md"))
        self.assertRegex(printed[0], r"loss \d")
        self.assertEqual(printed[0], printed[1])

    def test_train_dualpipe(self):
        printed = launch(4, os.path.join(PYTHON, "examples", "train_dualpipe.py"), TEXT)
        losses = [float(loss) for loss in re.findall(r"step \d+ loss (\S+)", printed[0])]
        self.assertEqual(len(losses), 20)
        self.assertLess(losses[-1], losses[0] - 1)

    def test_train_loop(self):
        script = os.path.join(PYTHON, "examples", "train_loop.py")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.pt")
            first = launch(4, script, TEXT, path, "zb-v")
            again = launch(2, script, TEXT, path, "dualpipe")
        losses, more = ([float(loss) for loss in re.findall(r"step \d+ loss (\S+)", printed[0])]
                        for printed in (first, again))
        self.assertEqual((len(losses), len(more)), (20, 20))
        self.assertLess(losses[-1], losses[0] - 1)
        self.assertLess(abs(more[0] - losses[-1]), 0.5)  # another schedule goes on from there
        self.assertLess(more[-1], losses[-1])
        self.assertRegex(first[0], r"held back: loss \d")

    @unittest.skipUnless(importlib.util.find_spec("transformers"), "there are no transformers")
    def test_train_hf(self):
        script = os.path.join(PYTHON, "examples", "train_hf.py")
        printed = launch(4, script, TEXT, "dualpipe")
        losses = [float(loss) for loss in re.findall(r"step \d+ loss (\S+)", printed[0])]
        self.assertEqual(len(losses), 20)
        self.assertLess(losses[-1], losses[0] - 1)


if __name__ == "__main__":
    unittest.main()
