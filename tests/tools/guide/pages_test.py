"""Pages that are made are as they would be made now: pages_test.py BIN. Cost files in the reference can be read.

CF_BLESS=1 makes them anew.
"""

import filecmp
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import markdown as md

GUIDE = os.path.join(md.ROOT, "tools", "guide")
BLESS = os.environ.get("CF_BLESS") == "1"
BIN = sys.argv.pop()


class PagesTest(unittest.TestCase):
    def test_commands(self):
        """The reference of the commands is their --help."""
        there = os.path.join(GUIDE, "reference")
        with tempfile.TemporaryDirectory() as made:
            subprocess.run([os.path.join(GUIDE, "commands.sh"), BIN, made], check=True)
            if BLESS:
                shutil.rmtree(os.path.join(there, "commands"))
                shutil.copytree(made, there, dirs_exist_ok=True)
            names = sorted(os.listdir(os.path.join(made, "commands")))
            self.assertEqual(sorted(os.listdir(os.path.join(there, "commands"))), names)
            for name in ["commands.md"] + [os.path.join("commands", n) for n in names]:
                with self.subTest(page=name):
                    self.assertTrue(filecmp.cmp(os.path.join(made, name), os.path.join(there, name), shallow=False),
                                    "run tools/guide/commands.sh, or this test with CF_BLESS=1")

    def test_rooms(self):
        """The picture of the folders follows the includes."""
        made = subprocess.run([sys.executable, os.path.join(GUIDE, "rooms.py"), md.ROOT], check=True,
                              capture_output=True, text=True).stdout
        path = os.path.join(GUIDE, "rooms.svg")
        if BLESS:
            with open(path, "w", encoding="utf-8") as picture:
                picture.write(made)
        self.assertEqual(md.read(path), made, "run tools/guide/rooms.py, or this test with CF_BLESS=1")

    def test_result(self):
        """The result in the README is that of its commands, which other tests run."""
        text = md.read("README.md")
        result, = re.findall(r"\*\*A result\.\*\*(.*?)\n\n", text, re.S)
        printed = "".join(re.findall(r"```console\n(.*?)```", text, re.S))
        best, usual = re.findall(r"[\d.]+ s\b", result)
        for step in (best, usual):
            self.assertIn(" " + step, printed)
        self.assertIn(re.search(r"([\d.]+) % MFU", result)[1], printed)
        shorter = 1 - float(best[:-2]) / float(usual[:-2])
        self.assertEqual(f"{shorter:.0%}", re.search(r"It is (\d+ %) shorter", result)[1].replace(" ", ""))

    def test_cost_files(self):
        examples = 0
        for page in ("cost-file", "cost-file-layers", "cost-file-moe"):
            for example in re.findall(r"```json\n(.*?)```", md.read(f"tools/guide/reference/{page}.md"), re.S):
                examples += 1
                with self.subTest(page=page, example=example), tempfile.TemporaryDirectory() as folder:
                    path = os.path.join(folder, "costs.json")
                    with open(path, "w", encoding="utf-8") as file:
                        file.write(example)
                    ranks = str(max(2, len(re.findall(r'\{"f"', example)), len(re.findall(r'"speed"', example))))
                    run = subprocess.run([os.path.join(BIN, "contraflow"), "compile", "--schedule", "1f1b", "--ranks", ranks,
                                          "--microbatches", "4", "--costs", path, "-o", os.path.join(folder, "plan.json")],
                                         capture_output=True, text=True, check=False)
                    self.assertEqual(run.returncode, 0, run.stderr)
        self.assertGreater(examples, 10)


if __name__ == "__main__":
    unittest.main()
