"""Values that the package returns: compared, hashed, copied, pickled, shown."""

import copy
import json
import pickle
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
        uses = (repr, str, pickle.dumps, copy.copy, lambda empty: empty == empty, lambda empty: empty.unit,
                lambda empty: empty.ranks, lambda empty: empty.op, lambda empty: empty.message,
                lambda empty: cf.compile("1f1b", ranks=2, microbatches=2, costs=empty))
        for cls in (cf.Comparison, cf.Costs, cf.Finding, cf.Instruction, cf.Plan, cf.Route, cf.Simulation):
            for number, use in enumerate(uses):
                with self.subTest(cls.__name__, use=number), self.assertRaises((TypeError, AttributeError, RuntimeError)):
                    use(cls.__new__(cls))
            with self.assertRaisesRegex(TypeError, "__new__ made it"):
                repr(cls.__new__(cls))

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
