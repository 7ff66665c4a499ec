"""Values that the package returns: compared, hashed, copied, pickled, shown."""

import copy
import json
import os
import pickle
import tempfile
import unittest

import contraflow as cf


def plan_of(**options):
    return cf.compile("dualpipe", ranks=4, microbatches=8, costs="moe-unit", **options)


class ValuesTest(unittest.TestCase):
    def same(self, thing, again):
        self.assertIs(type(thing), type(again))
        self.assertEqual(thing, again)
        self.assertFalse(thing != again)
        self.assertEqual(repr(thing), repr(again))

    def test_version(self):
        self.assertRegex(cf.__version__, r"^\d+\.\d+\.\d+$")

    def test_copies_and_pickles(self):
        plan = plan_of()
        document = json.loads(plan.to_json())
        del document["programs"][0][-1]
        with self.assertRaises(cf.Unsound) as caught:
            cf.Plan.from_json(json.dumps(document)).verify()
        things = [plan, plan.routes[1], plan.programs[0][3], plan.simulate(), plan.simulate(comm=2),
                  cf.Costs("moe-unit"), caught.exception.findings[0]]
        for thing in things:
            self.same(thing, copy.copy(thing))
            self.same(thing, copy.deepcopy([thing])[0])
            for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
                self.same(thing, pickle.loads(pickle.dumps(thing, protocol)))
            self.assertNotEqual(thing, None)
            self.assertNotEqual(thing, repr(thing))
            self.assertTrue(repr(thing).startswith("<" + type(thing).__name__), repr(thing))
            self.assertLess(len(repr(thing)), 300)
        for thing in things[1:3] + things[6:]:
            self.assertEqual(hash(thing), hash(copy.copy(pickle.loads(pickle.dumps(thing)))))
        for thing in things[:1] + things[3:6]:
            with self.assertRaises(TypeError):
                hash(thing)

    def test_an_object_without_a_value_refuses(self):
        size = dict(ranks=2, microbatches=2)
        plan = cf.compile("1f1b", **size)
        # Each class, a word of where its objects come from, and functions that take one.
        classes = (
            (cf.Comparison, "compare", ()),
            (cf.Costs, "Costs", (lambda empty: cf.compile("1f1b", **size, costs=empty), plan.simulate,
                                 cf.Costs, lambda empty: cf.compare(**size, costs=empty))),
            (cf.Finding, "Unsound", ()),
            (cf.Instruction, "Instruction", ()),
            (cf.Plan, "compile", (lambda empty: cf.diff(plan, empty), lambda empty: cf.diff(empty, plan),
                                  lambda empty: cf.Costs.from_profile("t.json", plan=empty))),
            (cf.Route, "routes", ()),
            (cf.Simulation, "simulate", ()),
        )
        for cls, source, takers in classes:
            members = [name for name in vars(cls) if not name.startswith("_") or name in (
                "__repr__", "__str__", "__copy__", "__getstate__", "_repr_html_")]
            uses = [(name, lambda empty, name=name: self.used(empty, name)) for name in members
                    if not isinstance(vars(cls)[name], staticmethod)]
            uses += [("==", lambda empty: empty == empty), ("copy", copy.copy), ("deepcopy", copy.deepcopy),
                     *(("taken", taker) for taker in takers)]
            if cls.__hash__:
                uses.append(("hash", hash))
            if cls is not cf.Comparison:
                uses.append(("pickle", pickle.dumps))
            self.assertGreater(len(uses), 6)
            derived = type("Derived", (cls,), {})
            for made_of in (cls, derived):
                for name, use in uses:
                    with self.subTest(made_of.__name__, use=name):
                        with self.assertRaises(TypeError) as caught:
                            use(made_of.__new__(made_of))
                        self.assertRegex(str(caught.exception), f"{cls.__name__} has no value.*{source}")
            unmade = type("Unmade", (cls,), {"__init__": lambda self: None})
            with self.assertRaisesRegex(TypeError, r"__init__\(\) must be called"):
                unmade()

    def used(self, empty, name):
        """Reads a member and, where it is a method, calls it with what it may need."""
        member = getattr(empty, name)
        if callable(member):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "file.csv")
                member(*{"save": [path], "to_torchtitan": [path], "stages_of": [0], "rank_of": [0]}.get(name, []))

    def test_other_values_differ(self):
        plan = plan_of()
        self.assertNotEqual(plan.routes[0], plan.routes[1])
        self.assertNotEqual(plan.simulate(), plan.simulate(comm=2))
        self.assertEqual(plan.simulate(comm=2), plan.simulate(comm=2))
        other = cf.compile("dualpipe", ranks=4, microbatches=10, costs="moe-unit")
        self.assertNotEqual(plan.simulate(), other.simulate())
        again = pickle.loads(pickle.dumps(plan.simulate(comm=2)))
        self.assertEqual(again.makespan, plan.simulate(comm=2).makespan)

    def test_comparisons(self):
        size = dict(ranks=2, microbatches=4, no_auto=True)
        comparison = cf.compare(**size)
        self.assertEqual(comparison, cf.compare(**size))
        self.assertNotEqual(comparison, cf.compare(**size, comm=1))
        self.assertIs(copy.deepcopy(comparison), comparison)
        with self.assertRaisesRegex(TypeError, "rows and plans"):
            pickle.dumps(comparison)
        pickle.dumps((comparison.rows, comparison.plans))

    def test_diff_is_that_of_the_tool(self):
        first = cf.compile("1f1b", ranks=2, microbatches=4)
        second = cf.compile("zb-1p", ranks=2, microbatches=4)
        self.assertEqual(cf.diff(first, first), {
            "format": "contraflow-diff", "version": 1, "equal": True, "was": cf.diff(first, second)["was"],
            "is": cf.diff(second, first)["was"] | cf.diff(first, second)["was"], "fields": [], "ranks": []})
        found = cf.diff(first, second)
        self.assertFalse(found["equal"])
        self.assertEqual(found["was"]["makespan"], first.makespan)
        self.assertEqual(found["is"]["makespan"], second.makespan)
        self.assertEqual(found["fields"][1:3], ["-schedule 1f1b", "+schedule zb-1p"])
        for rank in found["ranks"]:
            lines = rank["edits"]
            self.assertTrue(lines[0].startswith(f"@@ rank {rank['rank']}, instruction "))
            for mark, count, program in (("-", "removed", first), ("+", "added", second)):
                marked = [line[1:] for line in lines if line.startswith(mark)]
                self.assertEqual(len(marked), rank[count])
                self.assertLessEqual(set(marked), {str(i) for i in program.programs[rank["rank"]]})
        self.assertEqual([rank["rank"] for rank in found["ranks"]], [0, 1])
        document = json.loads(first.to_json())
        del document["programs"][1][-1]
        broken = cf.Plan.from_json(json.dumps(document))
        self.assertEqual(cf.diff(first, broken)["is"], {"sound": False})
        self.assertEqual(cf.diff(first, broken)["ranks"][0]["removed"], 1)


if __name__ == "__main__":
    unittest.main()
