// Checks of lanes and buffers in Verify: one change to a tiny sound plan each, whole messages
// compared.

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "compiler/lower/interleave.h"
#include "compiler/lower/lower.h"
#include "compiler/verify/verify.h"
#include "schedules/registry.h"
#include "tests/support/support.h"

namespace contraflow::verify_lane_test {
namespace {

/// One layer a stage, every component 10 and every value 64 bytes.
CostModel TinyCosts() {
  MoeCost moe;
  moe.layers_per_stage = 1;
  for (auto* part : {&moe.attn_f, &moe.dispatch_f, &moe.mlp_f, &moe.combine_f, &moe.combine_b,
                     &moe.mlp_b, &moe.dispatch_b, &moe.attn_b, &moe.mlp_w, &moe.attn_w}) {
    *part = {10};
  }
  CostModel costs;
  costs.moe = moe;
  DeriveChunkCosts(&costs, Overlap::kAll);
  MemoryCost memory;
  memory.values.assign(kValueCount, 64);
  costs.memory = memory;
  return costs;
}

/// Two ranks, one micro-batch.
Plan Tiny(Level level) {
  const Spec spec = MakeSpec("gpipe", 2, 1, TinyCosts());
  return Lower(GeneratePlan(spec), TinyCosts(), {.target = level});
}

size_t Find(const Plan& plan, size_t rank, Op op) {
  for (size_t i = 0; i < plan.programs[rank].size(); ++i) {
    if (plan.programs[rank][i].op == op) return i;
  }
  FAIL("no such instruction");
  return 0;
}

TEST_SUITE("unit") {
  TEST_CASE("a tiny plan of components and buffers") {
    const Plan plan = Tiny(Level::kBuffer);
    CHECK(FindingsText(plan) == "");
    std::string text;
    for (const Instruction& i : plan.programs[0]) text += ToString(i) + "\n";
    CHECK(text ==
          "ATTN_F s0 l0 m0 lane=compute\n"
          "DISPATCH_F s0 l0 m0 lane=alltoall after=0\n"
          "MLP_F s0 l0 m0 lane=compute after=1\n"
          "COMBINE_F s0 l0 m0 lane=alltoall after=2\n"
          "SEND_F s0 m0 to=1 slot=8 lane=send after=3\n"
          "RECV_B s0 m0 from=1 slot=10 lane=recv\n"
          "COMBINE_B s0 l0 m0 lane=alltoall after=5\n"
          "MLP_B s0 l0 m0 lane=compute after=6\n"
          "MLP_W s0 l0 m0 lane=compute\n"
          "DISPATCH_B s0 l0 m0 lane=alltoall after=4,7\n"
          "ATTN_B s0 l0 m0 lane=compute after=9\n"
          "ATTN_W s0 l0 m0 lane=compute\n"
          "STEP s0 lane=compute\n");
    CHECK(ToString(plan.slots[0][0]) ==
          "input s0 l0 m0 arena=activation offset=0 bytes=64 first=0 last=11");
  }

  TEST_CASE("lane and event") {
    Plan plan = Tiny(Level::kComponent);
    plan.programs[0][Find(plan, 0, Op::DISPATCH_F)].lane = Lane::kCompute;
    CHECK(FindingsText(plan) ==
          "lane: rank 0, instruction 1: DISPATCH_F s0 l0 m0 lane=compute after=0 has lane=compute; "
          "its operation runs on lane=alltoall\n");
    plan = Tiny(Level::kComponent);
    plan.programs[0][Find(plan, 0, Op::ATTN_F)].lane = Lane::kNone;
    CHECK(FindingsText(plan) ==
          "lane: rank 0, instruction 0: ATTN_F s0 l0 m0 has no lane; its operation runs on "
          "lane=compute\n");
    plan = Tiny(Level::kComponent);
    Instruction& mlp = plan.programs[0][Find(plan, 0, Op::MLP_F)];
    mlp.after_count = 0;
    CHECK(FindingsText(plan) ==
          "event: rank 0, instruction 2: MLP_F s0 l0 m0 lane=compute needs 1 (DISPATCH_F s0 l0 m0 "
          "lane=alltoall after=0), on another lane, and does not wait for it; add 1 to its "
          "\"after\"\n");
    mlp = Tiny(Level::kComponent).programs[0][Find(plan, 0, Op::MLP_F)];
    mlp.after[0] = 9;
    CHECK(FindingsText(plan) ==
          "event: rank 0, instruction 2: MLP_F s0 l0 m0 lane=compute after=9 waits for 9, which "
          "does not stand before it; \"after\" has earlier instructions only\n"
          "event: rank 0, instruction 2: MLP_F s0 l0 m0 lane=compute after=9 needs 1 "
          "(DISPATCH_F s0 l0 m0 lane=alltoall after=0), on another lane, and does not wait for it; "
          "add 1 to its \"after\"\n");
    mlp.after = {1, 1};
    mlp.after_count = 2;
    CHECK(FindingsText(plan) ==
          "event: rank 0, instruction 2: MLP_F s0 l0 m0 lane=compute after=1,1 waits for 1 twice; "
          "drop one\n");
    mlp.after = {1, 0};
    CHECK(FindingsText(plan) ==
          "event: rank 0, instruction 2: MLP_F s0 l0 m0 lane=compute after=1,0 waits for 0 after "
          "1; \"after\" must ascend\n");
  }

  TEST_CASE("weight-order: all components of a stage add micro-batches in one order") {
    for (const Level level : {Level::kComponent, Level::kBuffer}) {
      CAPTURE(Name(level));
      const Plan descending =
          Lower(PlanFromText("rank\nF s0 m0\nF s0 m1\nB s0 m0\nB s0 m1\nW s0 m1\nW s0 m0\n"),
                TinyCosts(), {.target = level});
      CHECK(FindingsText(descending) == "");
      Plan plan = descending;
      std::vector<Instruction*> weights;
      for (Instruction& i : plan.programs[0]) {
        if (i.op == Op::MLP_W) weights.push_back(&i);
      }
      REQUIRE(weights.size() == 2);
      CHECK(weights[0]->microbatch == 1);
      std::swap(weights[0]->microbatch, weights[1]->microbatch);
      CHECK(FindingsText(plan) ==
            "weight-order: rank 0, instruction 19: ATTN_W s0 l0 m0 lane=compute adds to its weight "
            "gradient after 17 (ATTN_W s0 l0 m1 lane=compute), but another component of the stage "
            "adds micro-batch 0 before 1; all components of a stage must add micro-batches in one "
            "order\n");
    }
  }

  TEST_CASE("an event inside a group") {
    Plan plan = Tiny(Level::kComponent);
    const size_t send = Find(plan, 0, Op::SEND_F);
    Program& program = plan.programs[0];
    REQUIRE(program[send + 1].op == Op::RECV_B);
    program[send].group = program[send + 1].group = 0;
    program[send + 1].after[0] = static_cast<int>(send);
    program[send + 1].after_count = 1;
    std::vector<Finding> findings = Verify(plan);
    // The group is wrong for another reason too: what it receives depends on what it sends.
    std::erase_if(findings, [](const Finding& f) { return f.check == "deadlock"; });
    REQUIRE(findings.size() == 1);
    CHECK(findings[0].check == "event");
    CHECK(findings[0].message ==
          "RECV_B s0 m0 from=1 group=0 lane=recv after=4 waits for 4 of its own group, which is "
          "posted with it; drop it from \"after\"");
  }

  TEST_CASE("slot") {
    const auto changed = [](void (*change)(Slot*)) {
      Plan plan = Tiny(Level::kBuffer);
      change(&plan.slots[1][2]);
      return FindingsText(plan);
    };
    CHECK(changed([](Slot* s) { s->bytes = 65; }) ==
          "slot: rank 1: slot 2 (scores s1 l0 m0 arena=activation offset=64 bytes=65 first=1 "
          "last=9): by the costs scores has 64 bytes\n");
    CHECK(changed([](Slot* s) { s->offset += 8; }) ==
          "slot: rank 1: slot 2 (scores s1 l0 m0 arena=activation offset=72 bytes=64 first=1 "
          "last=9): its offset must be a multiple of 64\n");
    CHECK(changed([](Slot* s) { s->offset = int64_t{1} << 60; }) ==
          "slot: rank 1: slot 2 (scores s1 l0 m0 arena=activation offset=1152921504606846976 "
          "bytes=64 first=1 last=9): ends after 2^50, which no memory has\n");
    CHECK(changed([](Slot* s) { s->offset = -64; }) ==
          "slot: rank 1: slot 2 (scores s1 l0 m0 arena=activation offset=-64 bytes=64 first=1 "
          "last=9): begins before its arena\n");
    CHECK(changed([](Slot* s) { --s->last; }) ==
          "slot: rank 1: slot 2 (scores s1 l0 m0 arena=activation offset=64 bytes=64 first=1 "
          "last=8) is used from 1 (ATTN_F s1 l0 m0 lane=compute after=0) to 9 (ATTN_B s1 l0 m0 "
          "lane=compute after=8)\n");
    CHECK(changed([](Slot* s) { s->layer = 1; }) ==
          "slot: rank 1: slot 2 (scores s1 l1 m0 arena=activation offset=64 bytes=64 first=1 "
          "last=9): nothing on this rank touches it; drop it\n"
          "slot: rank 1, instruction 1: ATTN_F s1 l0 m0 lane=compute after=0 touches scores s1 "
          "l0 m0, which has no slot; add one of 64 bytes\n");
    CHECK(changed([](Slot* s) { s->arena = Arena::kGradient; }) ==
          "slot: rank 1: slot 2 (scores s1 l0 m0 arena=gradient offset=64 bytes=64 first=1 "
          "last=9): the arena of scores is activation\n");
    // A stage that is not the last has no head.
    Plan plan = Tiny(Level::kBuffer);
    Slot head = plan.slots[0].back();
    head.value = Value::head;
    head.arena = Arena::kStash;
    head.first = head.last;
    plan.slots[0].push_back(head);
    CHECK(FindingsText(plan) ==
          "slot: rank 0: slot 21 (head s0 l0 m0 arena=stash offset=0 bytes=64 first=11 last=11): "
          "nothing on this rank touches it; drop it\n");
    plan = Tiny(Level::kBuffer);
    plan.slots[1].erase(plan.slots[1].begin() + 2);
    CHECK(FindingsText(plan) ==
          "slot: rank 1, instruction 1: ATTN_F s1 l0 m0 lane=compute after=0 touches scores s1 l0 "
          "m0, which has no slot; add one of 64 bytes\n"
          "slot: rank 1, instruction 10: SEND_B s1 m0 to=0 slot=21 lane=send after=9 moves "
          "slot 20 (dinput s1 l0 m0 arena=exchange offset=0 bytes=64 first=9 last=10); it must "
          "have slot=20\n");
    plan = Tiny(Level::kBuffer);
    plan.slots[1].push_back(plan.slots[1].back());
    CHECK(FindingsText(plan) ==
          "slot: rank 1: slot 22 (dinput s1 l0 m0 arena=exchange offset=0 bytes=64 first=9 "
          "last=10) repeats slot 21 (dinput s1 l0 m0 arena=exchange offset=0 bytes=64 first=9 "
          "last=10); drop one\n");
    plan = Tiny(Level::kBuffer);
    plan.programs[0][Find(plan, 0, Op::SEND_F)].slot = 1;
    CHECK(FindingsText(plan) ==
          "slot: rank 0, instruction 4: SEND_F s0 m0 to=1 slot=1 lane=send after=3 moves slot 8 "
          "(output s0 l0 m0 arena=exchange offset=64 bytes=64 first=3 last=4); it must have "
          "slot=8\n");
    plan = Tiny(Level::kBuffer);
    plan.costs.reset();
    CHECK(
        FindingsText(plan) ==
        "slot: the plan has no costs, which say how large its values are; compile it with costs\n");
    plan = Tiny(Level::kBuffer);
    plan.slots.pop_back();
    CHECK(FindingsText(plan) ==
          "level: there are 1 lists of slots; at level buffer each of the 2 ranks must have one\n");
  }

  TEST_CASE("sharing") {
    Plan plan = Tiny(Level::kBuffer);
    for (Slot& slot : plan.slots[0]) {
      if (slot.value == Value::gate) slot.offset = 0;
    }
    CHECK(FindingsText(plan) ==
          "sharing: rank 0, instruction 2 (MLP_F s0 l0 m0 lane=compute after=1): slot 5 (gate s0 "
          "l0 m0 arena=activation offset=0 bytes=64 first=2 last=7) lies on bytes of slot 0 (input "
          "s0 l0 m0 arena=activation offset=0 bytes=64 first=0 last=11), but 2 (MLP_F s0 l0 m0 "
          "lane=compute after=1) does not wait until 11 (ATTN_W s0 l0 m0 lane=compute) is done "
          "with them; move one of them, or add the event\n");
  }
}

}  // namespace
}  // namespace contraflow::verify_lane_test
