"""What _core.pyi declares is what contraflow._core has; mypy's view of it, where there is mypy."""

import ast
import importlib.util
import inspect
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest

import contraflow as cf
from contraflow import _core

PACKAGE = os.path.dirname(os.path.abspath(cf.__file__))


def declared():
    """Names of the stub and, of its classes, their members, inherited ones as well."""
    with open(os.path.join(PACKAGE, "_core.pyi")) as file:
        tree = ast.parse(file.read())
    classes = {}
    functions = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            functions.add(node.name)
        if isinstance(node, ast.ClassDef):
            members = {m.name for m in node.body if isinstance(m, ast.FunctionDef)}
            members |= {m.target.id for m in node.body if isinstance(m, ast.AnnAssign)}
            for base in node.bases:
                members |= classes.get(base.id, set())
            classes[node.name] = members
    return functions, {name: m for name, m in classes.items() if not name.startswith("_")}


class StubsTest(unittest.TestCase):
    def test_names(self):
        functions, classes = declared()
        there = {name for name in vars(_core) if not name.startswith("_")}
        self.assertEqual(there, functions | set(classes))
        for name, members in classes.items():
            cls = getattr(_core, name)
            if issubclass(cls, Exception):
                continue
            own = {m for m in vars(cls) if not m.startswith("_") or m == "_repr_html_"}
            self.assertEqual(own, members - {"__init__"}, name)
            for member in own:
                self.assertTrue(inspect.getdoc(getattr(cls, member)) or member == "_repr_html_",
                                f"{name}.{member} has no text for help()")

    @unittest.skipIf(importlib.util.find_spec("mypy") is None, "needs mypy")
    def test_mypy(self):
        use = '''
            import contraflow as cf
            plan: cf.Plan = cf.compile("auto", ranks=4, microbatches=8, placement=["linear", "v"])
            length: float = plan.makespan + plan.simulate(f=2.0).busy.sum()
            peers = [i.peer for program in plan.programs for i in program]
            plan.ranks = 3
            cf.compile("auto", ranks="4", microbatches=8)
        '''
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "use.py"), "w") as file:
                file.write(textwrap.dedent(use))
            shown = subprocess.run(
                [sys.executable, "-m", "mypy", "--no-error-summary", "use.py"],
                cwd=folder, env={**os.environ, "MYPYPATH": os.path.dirname(PACKAGE)},
                capture_output=True, text=True,
            ).stdout
        wrong = [line.split(":")[1] for line in shown.splitlines() if ": error:" in line]
        self.assertEqual(wrong, ["6", "7"], shown)


if __name__ == "__main__":
    unittest.main()
