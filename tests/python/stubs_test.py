"""Declarations of _core.pyi are those of contraflow._core; mypy's view of it, where there is mypy."""

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


HASHED = {"Finding", "Instruction", "Route"}
TIMES = ("f", "b", "w", "bw", "fb", "comm", "split", "host_link", "overlap")


def parameters(signature):
    """(name, default or None, whether by keyword alone) of each, without self."""
    arguments = ast.parse(f"def f({signature}): ...").body[0].args
    positional = arguments.posonlyargs + arguments.args
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    found = [(a.arg, d and ast.unparse(d), False) for a, d in zip(positional, defaults)]
    found += [(a.arg, d and ast.unparse(d), True)
              for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults)]
    if arguments.kwarg:
        found += [(name, "None", True) for name in TIMES]
    return [entry for entry in found if entry[0] != "self"]


def functions_of_stub():
    """(class or None, name, the part between the brackets, what it returns) of each."""
    with open(os.path.join(PACKAGE, "_core.pyi")) as file:
        tree = ast.parse(file.read())
    for node in tree.body:
        for part in node.body if isinstance(node, ast.ClassDef) else [node]:
            if not isinstance(part, ast.FunctionDef) or part.name in ("compile", "compare"):
                continue
            of = node.name if isinstance(node, ast.ClassDef) else None
            if any(isinstance(d, ast.Name) and d.id == "property" for d in part.decorator_list):
                continue
            if part.name.startswith("__") and part.name != "__init__":
                continue
            yield of, part.name, ast.unparse(part.args), ast.unparse(part.returns)


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
            self.assertEqual(own, {m for m in members if not m.startswith("__")}, name)
            self.assertEqual("__hash__" in members, "__hash__" in vars(cls), name)
            hashed = vars(cls).get("__hash__") is not None
            self.assertEqual(hashed, name in HASHED, name)
            for member in own:
                self.assertTrue(inspect.getdoc(getattr(cls, member)) or member == "_repr_html_",
                                f"{name}.{member} has no text for help()")

    def test_signatures(self):
        for of, name, arguments, returned in functions_of_stub():
            function = getattr(getattr(_core, of) if of else _core, name)
            head = function.__doc__.split("\n")[0]
            if "Overloaded" in function.__doc__:
                self.fail(f"{of}.{name} has several signatures")
            there, _, gives = head[head.index("(") + 1:].rpartition(") -> ")
            self.assertEqual(parameters(arguments), parameters(there), f"{of}.{name}")
            # Knowledge of C++ about the result; "object", "dict" and the like say less than the
            # stub.
            gives = gives.replace("contraflow._core.", "")
            if gives not in ("object", "dict", "tuple", "list"):
                self.assertEqual(returned, gives, f"{of}.{name}")

    @unittest.skipIf(importlib.util.find_spec("mypy") is None, "needs mypy")
    def test_mypy(self):
        use = '''
            import contraflow as cf
            plan: cf.Plan = cf.compile("auto", ranks=4, microbatches=8, placement=["linear", "v"])
            length: float = plan.makespan + plan.simulate(f=2.0).busy.sum()
            peers = [i.peer for program in plan.programs for i in program]
            cf.diff(plan, plan)["equal"], plan.simulate(f=2, comm=0.5), plan.explain(rank=0)
            plan.ranks = 3
            cf.compile("auto", ranks="4", microbatches=8)
            plan.simulate(ff=2)
            hash(plan.routes[0]) + hash(plan.simulate())
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
        self.assertEqual(wrong, ["7", "8", "9"], shown)


if __name__ == "__main__":
    unittest.main()
