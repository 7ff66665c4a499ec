"""Declarations of _core.pyi are those of contraflow._core; mypy's view of it, where there is mypy."""

import ast
import importlib.util
import inspect
import os
import re
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
            if not isinstance(part, ast.FunctionDef) or part.name in ("compile", "compare", "plan"):
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
            gives = re.sub(r"^(\w+) \| None$", r"Optional[\1]", gives)  # as newer pybind11 writes it
            if gives not in ("object", "dict", "tuple", "list"):
                self.assertEqual(returned, gives, f"{of}.{name}")

    def mypy(self, use):
        """Complaints about a program and the package but for contraflow.torch: (file, line) of each, and the text."""
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "use.py"), "w") as file:
                file.write(textwrap.dedent(use))
            environment, files = dict(os.environ), ["use.py"]
            if "site-packages" not in PACKAGE:  # where mypy looks by itself, and complains of nothing
                environment["MYPYPATH"] = os.path.dirname(PACKAGE)
                files += [os.path.join(PACKAGE, name) for name in ("__init__.py", "compiling.py", "_core.pyi")]
            shown = subprocess.run(
                [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary", *files],
                cwd=folder, env=environment, capture_output=True, text=True)
        self.assertEqual(shown.stderr, "")
        found = [line.split(":")[:2] for line in shown.stdout.splitlines() if ": error:" in line]
        return [(os.path.basename(file), int(line)) for file, line in found], shown.stdout

    @unittest.skipIf(importlib.util.find_spec("mypy") is None, "needs mypy")
    def test_mypy(self):
        right = '''
            import contraflow as cf
            plan: cf.Plan = cf.compile("auto", ranks=4, microbatches=8, placement=["linear", "v"], f="2ms")
            run: cf.Simulation = plan.simulate(f=2.0, comm="1us")
            length: float = plan.makespan + run.busy.sum() + run.timeline["end"].max()
            peers = [i.peer for program in plan.programs for i in program]
            cf.diff(plan, plan)["equal"], plan.simulate(f=2, comm=0.5), plan.explain(rank=0)
            hash(plan.routes[0]) + plan.rank_of(1) + plan.rank_of(1, microbatch=3) + sum(plan.partition)
            costs: cf.Costs = plan.costs or cf.Costs("moe-unit")
            table: str = run._repr_html_() + cf.compare(ranks=2, microbatches=4).to_csv()
            names = [name.upper() for name in cf.compare(ranks=2, microbatches=4, costs=costs).columns]
            cf.torch
        '''
        found, shown = self.mypy(right)
        self.assertEqual(found, [], shown)
        wrong = '''
            import contraflow as cf
            plan = cf.compile("auto", ranks=4, microbatches=8)
            plan.ranks = 3
            cf.compile("auto", ranks="4", microbatches=8)
            plan.simulate(ff=2)
            cf.compare_all(plan)
            plan.rank_of("1")
            plan.costs.unit
            plan.partition.append(1)
        '''
        found, shown = self.mypy(wrong)
        self.assertEqual(found, [("use.py", line) for line in range(4, 11)], shown)


if __name__ == "__main__":
    unittest.main()
