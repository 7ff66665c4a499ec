"""Plans: made, read, written, proven."""

import json
import os
import pickle
import tempfile
import unittest

import contraflow as cf


class PlanTest(unittest.TestCase):
    def test_says_what_the_plan_file_says(self):
        plan = cf.compile("dualpipe", ranks=4, microbatches=8, costs="deepseek-v3-h800")
        document = json.loads(plan.to_json())
        for name in ("ranks", "stages", "microbatches", "schedule", "level", "layers"):
            self.assertEqual(getattr(plan, name), document.get(name, 0), name)
        routes = [(list(r.ranks), list(r.microbatches)) for r in plan.routes]
        self.assertEqual(routes[1][0], [3, 2, 1, 0])
        self.assertEqual(
            [[str(i) for i in program] for program in plan.programs], document["programs"]
        )
        self.assertEqual(plan.stages_of(0), (0, 3))

    def test_partition(self):
        layers = [{"name": "embedding", "f": 1, "b": 0, "w": 1}, {"name": "block", "repeat": 8, "f": 2, "b": 2, "w": 2},
                  {"name": "head", "f": 1, "b": 1, "w": 1}]
        for options in ({}, {"partition": "4,1,3,2"}):
            plan = cf.compile("zb-v", ranks=2, microbatches=4, costs={"unit": "ms", "layers": layers}, **options)
            self.assertEqual(list(plan.partition), json.loads(plan.to_json())["costs"]["partition"])
            self.assertEqual((len(plan.partition), sum(plan.partition)), (4, 10))
        self.assertEqual(plan.partition, (4, 1, 3, 2))
        self.assertEqual(plan.layout(), ("Ettt", "t", "ttt", "tL"))
        with self.assertRaisesRegex(cf.Error, "the costs of the plan have the layers Et.3.t.t.3.tL"):
            plan.layout(7)
        plan = cf.compile("zb-v", ranks=2, microbatches=4)
        self.assertEqual(plan.partition, ())
        self.assertEqual(plan.layout(6), ("Et", "tt", "tt", "tL"))
        self.assertEqual(plan.layout("1,2,3,1"), ("Et", "tt", "ttt", "tL"))
        for wrong, text in ((None, "do not say how many layers the model has"), (3, "must be in 4.*is 3")):
            with self.assertRaisesRegex(cf.Error, text):
                plan.layout(wrong)

    def test_costs(self):
        layers = [{"name": "block", "repeat": 8, "f": 2, "b": 2, "w": 2}, {"name": "head", "f": 1, "b": 1, "w": 1}]
        for costs, options in (("moe-unit", {"level": "component"}), (cf.Costs(f=3, b=2, w=1, comm=0.5), {}),
                               ({"unit": "ms", "layers": layers}, {}), (None, {})):
            plan = cf.compile("zb-v", ranks=2, microbatches=4, costs=costs, **options)
            self.assertEqual(json.loads(plan.costs.to_json()), {**json.loads(plan.costs.to_json()),
                                                                **json.loads(plan.to_json())["costs"]})
            self.assertEqual(plan.simulate(plan.costs), plan.simulate())
            if not plan.partition:
                self.assertEqual(plan.costs, cf.Costs(costs))
            self.assertEqual(cf.Plan.from_json(plan.to_json()).costs, plan.costs)
        document = json.loads(plan.to_json())
        del document["costs"]
        self.assertIsNone(cf.Plan.from_json(json.dumps(document)).costs)

    def test_rank_of(self):
        plan = cf.compile("dualpipe", ranks=4, microbatches=8)
        self.assertEqual([plan.rank_of(stage) for stage in range(4)], [0, 1, 2, 3])
        for rank, program in enumerate(plan.programs):
            for i in program:
                if i.op in ("F", "BW", "B", "W"):
                    self.assertEqual(plan.rank_of(i.stage, i.microbatch), rank, str(i))
            for stage in plan.stages_of(rank):
                self.assertIn(rank, {plan.rank_of(stage, m) for m in range(plan.microbatches)})
        component = cf.compile("zb-v", ranks=2, microbatches=4, costs="moe-unit", level="component")
        self.assertEqual([component.rank_of(stage) for stage in range(4)], [0, 1, 1, 0])
        self.assertEqual(component.rank_of(microbatch=3, stage=2), 1)
        for wrong in ({"stage": 4}, {"stage": -1}, {"stage": 0, "microbatch": 8}, {"stage": 0, "microbatch": -1}):
            name = list(wrong)[-1]
            with self.assertRaisesRegex(cf.Error, f"^{name}: must be in 0..{7 if len(wrong) > 1 else 3}, is "):
                plan.rank_of(**wrong)
        document = json.loads(plan.to_json())
        document["routes"][1]["microbatches"] = [5, 6, 7]
        broken = cf.Plan.from_json(json.dumps(document))
        self.assertEqual((broken.rank_of(0), broken.rank_of(0, 5)), (0, 3))
        with self.assertRaisesRegex(cf.Error, "^microbatch: no route takes 4, so the plan is not sound"):
            broken.rank_of(0, 4)

    def test_instruction_has_its_fields_and_no_others(self):
        plan = cf.compile("dualpipe", ranks=4, microbatches=8)
        pair = next(i for i in plan.programs[0] if i.op == "FB")
        fields = (pair.stage, pair.microbatch, pair.back_stage, pair.back_microbatch)
        self.assertEqual(str(pair).split(" group=")[0], "FB s%d m%d + s%d m%d" % fields)
        self.assertIsNone(pair.peer)
        send = cf.Instruction("SEND_F s3 m7 to=4 group=2")
        self.assertEqual((send.op, send.stage, send.microbatch), ("SEND_F", 3, 7))
        self.assertEqual((send.peer, send.group, send.back_stage), (4, 2, None))
        self.assertEqual(send.after, ())
        self.assertEqual(send, cf.Instruction(str(send)))
        self.assertEqual(hash(send), hash(cf.Instruction(str(send))))
        self.assertNotEqual(send, "SEND_F s3 m7 to=4 group=2")
        with self.assertRaises(cf.Error):
            cf.Instruction("SEND_F s3 m7")
        lowered = cf.compile("1f1b", ranks=2, microbatches=2, costs="moe-unit", level="component")
        later = next(i for i in lowered.programs[1] if i.after)
        self.assertIn("after=" + ",".join(map(str, later.after)), str(later))
        self.assertIn("lane=" + later.lane, str(later))

    def test_files_come_back(self):
        plan = cf.compile("zb-v", ranks=4, microbatches=8)
        with tempfile.TemporaryDirectory() as folder:
            for name in ("plan.json", "plan.cbor", "plan/"):
                path = os.path.join(folder, name)
                plan.save(path)
                self.assertEqual(cf.Plan.load(path), plan, name)
            with self.assertRaisesRegex(cf.Error, "missing.json"):
                cf.Plan.load(os.path.join(folder, "missing.json"))
        self.assertEqual(cf.Plan.from_json(plan.to_json()), plan)
        self.assertNotEqual(cf.compile("zb-v", ranks=4, microbatches=9), plan)

    def test_unsound_plan_is_told_with_findings(self):
        plan = cf.compile("1f1b", ranks=2, microbatches=4)
        plan.verify()
        document = json.loads(plan.to_json())
        gone = document["programs"][0].index("SEND_F s0 m1 to=1")
        del document["programs"][0][gone]
        broken = cf.Plan.from_json(json.dumps(document))
        with self.assertRaises(cf.Unsound) as caught:
            broken.verify()
        finding = caught.exception.findings[0]
        self.assertEqual((finding.check, finding.rank), ("message", 0))
        self.assertIn("SEND_F s0 m1 to=1", finding.message)
        self.assertIn(finding.message, str(caught.exception))
        self.assertIsInstance(caught.exception, ValueError)
        with self.assertRaises(cf.Unsound):
            broken.makespan
        again = pickle.loads(pickle.dumps(caught.exception))  # as from another process
        self.assertEqual(again.findings, caught.exception.findings)

    def test_figures(self):
        plan = cf.compile("gpipe", ranks=4, microbatches=8, f=2, b=3, w=1)
        self.assertEqual(plan.makespan, (8 + 3) * (2 + 4))
        self.assertAlmostEqual(plan.bubble_ratio, 3 / 11)
        self.assertLessEqual(plan.bound, plan.makespan)
        self.assertAlmostEqual(plan.gap, plan.makespan / plan.bound - 1)
        self.assertEqual(plan.unit, "unit")


if __name__ == "__main__":
    unittest.main()
