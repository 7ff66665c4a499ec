// One small plan a violation, whole messages compared. Deadlocks are in deadlock_test.cc.

#include "compiler/verify/verify.h"

#include <doctest/doctest.h>

#include <string>

#include "tests/support/support.h"

namespace contraflow::verify_test {
namespace {

/// Two ranks, two micro-batches, 1F1B, level comm: sound. `edit` replaces one line by another.
Plan Edited(const std::string& rank, const std::string& line, const std::string& edit) {
  std::string text =
      "rank 0\n F s0 m0\n SEND_F s0 m0 to=1\n F s0 m1\n SEND_F s0 m1 to=1\n RECV_B s0 m0 from=1\n"
      " BW s0 m0\n RECV_B s0 m1 from=1\n BW s0 m1\n STEP s0\n"
      "rank 1\n RECV_F s1 m0 from=0\n F s1 m0\n RECV_F s1 m1 from=0\n B s1 m0\n"
      " SEND_B s1 m0 to=0\n F s1 m1\n W s1 m0\n B s1 m1\n SEND_B s1 m1 to=0\n W s1 m1\n STEP s1\n";
  const size_t at = text.find(" " + line + "\n", text.find(rank));
  REQUIRE(at != std::string::npos);
  text.replace(at, line.size() + 2, edit);
  return PlanFromText(text);
}

/// Two copies of one stage each of a V: stages 0 and 1 on both ranks, one micro-batch a rank.
Plan Copies(const std::string& first_end, const std::string& second_end) {
  return PlanFromText(
      "route 0 0 : 0\nroute 1 1 : 1\n"
      "rank\n F s0 m0\n F s1 m0\n BW s1 m0\n BW s0 m0\n" +
      first_end + "rank\n F s0 m1\n F s1 m1\n BW s1 m1\n BW s0 m1\n" + second_end);
}
const char* const kEnd = " REDUCE s0\n STEP s0\n REDUCE s1\n STEP s1\n";

TEST_SUITE("unit") {
  TEST_CASE("a sound plan has no findings") {
    CHECK(FindingsText(Edited("rank 0", "F s0 m0", " F s0 m0\n")) == "");
    CHECK(FindingsText(Copies(kEnd, kEnd)) == "");
  }

  TEST_CASE("shape") {
    Plan plan = Edited("rank 0", "F s0 m0", " F s0 m0\n");
    plan.ranks = 3;
    CHECK(FindingsText(plan) == "shape: there are 2 programs; each of the 3 ranks must have one\n");
    plan.ranks = 0;
    plan.microbatches = 1 << 30;
    CHECK(FindingsText(plan) ==
          "shape: ranks is 0, must be 1..16384\n"
          "shape: microbatches is 1073741824, must be 1..1048576\n");
    plan = Edited("rank 0", "F s0 m0", " F s0 m0\n");
    plan.stages = kMaxStages;
    plan.microbatches = kMaxMicrobatches;
    CHECK(FindingsText(plan) ==
          "shape: stages x microbatches is 34359738368, must be at most 134217728\n");
    plan = Edited("rank 0", "F s0 m0", " F s0 m0\n");
    plan.routes = {{.ranks = {0, 5, 1}, .microbatches = {1, 0}},
                   {.ranks = {0, 1}, .microbatches = {}},
                   {.ranks = {0, 1}, .microbatches = {1, 2}}};
    plan.microbatches = 4;
    CHECK(FindingsText(plan) ==
          "shape: route 0 has 3 ranks, must have one for each of the 2 stages\n"
          "shape: route 0 has stage 1 on rank 5; ranks are 0..1\n"
          "shape: route 0 has micro-batch 0 after 1; they must ascend\n"
          "shape: route 1 has no micro-batches; drop it\n"
          "shape: route 2 has micro-batch 1, which route 0 has already; each belongs to exactly "
          "one route\n"
          "shape: micro-batch 3 is in no route; each belongs to one\n");
    plan = Edited("rank 0", "F s0 m0", " F s0 m0\n");
    plan.programs[0][1].peer = 2;
    plan.programs[0][1].microbatch = -4;
    plan.programs[1][0].back_stage = 0;
    CHECK(FindingsText(plan) ==
          "shape: rank 0, instruction 1: SEND_F: microbatch is -4, must be 0..1\n"
          "shape: rank 0, instruction 1: SEND_F: peer is 2, must be 0..1\n"
          "shape: rank 1, instruction 0: RECV_F: back_stage is 0, must be -1, the operation has "
          "none\n");
    plan.programs[0][1].op = static_cast<Op>(200);
    CHECK(FindingsText(plan).rfind("shape: rank 0, instruction 1: operation 200 does not exist\n",
                                   0) == 0);
  }

  TEST_CASE("level") {
    CHECK(FindingsText(PlanFromText("level compute\nrank\n F s0 m0\n BW s0 m0\n STEP s0\n")) ==
          "level: rank 0, instruction 2: STEP s0 does not belong at level compute, which has F B W "
          "BW FB R OFFLOAD RELOAD only; drop it\n");
    CHECK(FindingsText(Edited("rank 0", "BW s0 m0", " BW s0 m0 slot=3 lane=compute after=2\n")) ==
          "level: rank 0, instruction 5: BW s0 m0 slot=3 lane=compute after=2 has the key "
          "\"slot\", which level comm does not have; drop it\n"
          "level: rank 0, instruction 5: BW s0 m0 slot=3 lane=compute after=2 has the key "
          "\"lane\", which level comm does not have; drop it\n"
          "level: rank 0, instruction 5: BW s0 m0 slot=3 lane=compute after=2 has the key "
          "\"after\", which level comm does not have; drop it\n");
    CHECK(FindingsText(Edited("rank 0", "BW s0 m0", " BW s0 m0 group=1\n")) ==
          "level: rank 0, instruction 5: BW s0 m0 group=1 has the key \"group\", which only SEND "
          "and RECV have; drop it\n");
    CHECK(FindingsText(Edited("rank 1", "F s1 m1", " F s1 m1\n MLP_F s1 l0 m1\n")) ==
          "level: rank 1, instruction 6: MLP_F s1 l0 m1 does not belong at level comm, which has "
          "no components of a stage; drop it\n");
    CHECK(FindingsText(PlanFromText("level buffer\nrank\n F s0 m0\n BW s0 m0\n")) ==
          "level: there are 0 lists of slots; at level buffer each of the 1 ranks must have one\n");
  }

  TEST_CASE("owner") {
    CHECK(FindingsText(PlanFromText("rank\n F s0 m0\n BW s0 m0\n W s1 m0\nrank\n F s1 m0\n"
                                    " B s1 m0\n")) ==
          "owner: rank 0, instruction 2: W s1 m0 runs the weight gradient of stage 1, micro-batch "
          "0 on rank 0; route 0 has it on rank 1\n");
    CHECK(FindingsText(PlanFromText("route 0 1 : 0 1\nrank\n F s0 m0\n F s0 m1\n BW s0 m0\n"
                                    " FB s1 m1 + s0 m1\nrank\n F s1 m0\n BW s1 m0\n BW s1 m1\n")) ==
          "owner: rank 0, instruction 3: FB s1 m1 + s0 m1 runs the forward of stage 1, micro-batch "
          "1 on rank 0; route 0 has it on rank 1\n");
    CHECK(FindingsText(Edited("rank 0", "STEP s0", " STEP s0\n STEP s1\n")) ==
          "owner: rank 0, instruction 9: STEP s1 is on rank 0, which has no copy of stage 1; drop "
          "it\n");
  }

  TEST_CASE("complete") {
    CHECK(FindingsText(PlanFromText("rank\n F s0 m0\n F s0 m1\n F s0 m0\n BW s0 m0\n")) ==
          "complete: rank 0: no backward of stage 0, micro-batch 1; rank 0 must run BW s0 m1, or B "
          "and W, once\n"
          "complete: rank 0, instruction 2: F s0 m0 repeats the forward of stage 0, micro-batch 0, "
          "done at 0 (F s0 m0); drop one\n");
    CHECK(FindingsText(PlanFromText("rank\n B s0 m0\n F s0 m1\n W s0 m1\n")) ==
          "complete: rank 0: no forward of stage 0, micro-batch 0; rank 0 must run F s0 m0 once\n"
          "complete: rank 0: no weight gradient of stage 0, micro-batch 0; rank 0 must run W s0 m0 "
          "once\n"
          "complete: rank 0: no input gradient of stage 0, micro-batch 1; rank 0 must run B s0 m1 "
          "once\n");
    CHECK(FindingsText(PlanFromText("rank\n F s0 m0\n B s0 m0\n W s0 m0\n BW s0 m0\n")) ==
          "complete: rank 0, instruction 3: BW s0 m0 repeats the backward of stage 0, micro-batch "
          "0, done at 1 (B s0 m0); drop one\n");
    CHECK(FindingsText(PlanFromText("rank\n F s0 m0\n BW s0 m0\n W s0 m0\n")) ==
          "complete: rank 0, instruction 2: W s0 m0 repeats the weight gradient of stage 0, "
          "micro-batch 0, done at 1 (BW s0 m0); drop one\n");
    CHECK(FindingsText(PlanFromText("rank\n F s0 m0\n F s0 m1\n BW s0 m0\n FB s0 m1 + s0 m0\n"
                                    " BW s0 m1\n")) ==
          "complete: rank 0, instruction 3: FB s0 m1 + s0 m0 repeats the forward of stage 0, "
          "micro-batch 1, done at 1 (F s0 m1); drop one\n"
          "complete: rank 0, instruction 3: FB s0 m1 + s0 m0 repeats the backward of stage 0, "
          "micro-batch 0, done at 2 (BW s0 m0); drop one\n");
  }

  TEST_CASE("order") {
    CHECK(FindingsText(PlanFromText("rank\n B s0 m0\n F s0 m0\n W s0 m0\n")) ==
          "order: rank 0, instruction 0: B s0 m0 stands before 1 (F s0 m0), whose activations it "
          "needs; move it after\n");
    CHECK(FindingsText(PlanFromText("rank\n F s0 m0\n W s0 m0\n B s0 m0\n")) ==
          "order: rank 0, instruction 1: W s0 m0 stands before 2 (B s0 m0), whose gradients it "
          "needs; move it after\n");
    CHECK(FindingsText(PlanFromText("route 0 0 : 0\nrank\n F s1 m0\n F s0 m0\n BW s0 m0\n"
                                    " BW s1 m0\n")) ==
          "order: rank 0, instruction 0: F s1 m0 needs the output of stage 0, micro-batch 0, made "
          "at 1 (F s0 m0); move it after\n"
          "order: rank 0, instruction 2: BW s0 m0 needs the input gradient of stage 1, micro-batch "
          "0, made at 3 (BW s1 m0); move it after\n");
    CHECK(FindingsText(PlanFromText("rank\n FB s0 m0 + s0 m0\n")) ==
          "order: rank 0, instruction 0: FB s0 m0 + s0 m0 overlaps a forward with its own "
          "backward, which needs it first; an FB takes two different micro-batches\n");
  }

  TEST_CASE("weight-order: a copy adds its micro-batches in whatever order it says") {
    CHECK(FindingsText(PlanFromText("rank\n F s0 m0\n F s0 m1\n F s0 m2\n B s0 m0\n BW s0 m1\n"
                                    " BW s0 m2\n W s0 m0\n")) == "");
    // Two copies of a stage, one ascending and one descending.
    CHECK(FindingsText(PlanFromText("route 0 : 0 2\nroute 1 : 1 3\n"
                                    "rank\n F s0 m0\n F s0 m2\n BW s0 m0\n BW s0 m2\n"
                                    "rank\n F s0 m1\n F s0 m3\n BW s0 m3\n BW s0 m1\n")) == "");
  }

  TEST_CASE("message") {
    CHECK(FindingsText(Edited("rank 1", "RECV_F s1 m1 from=0", "")) ==
          "message: rank 1: no RECV_F s1 m1 from=0; rank 0 waits for it at 3 (SEND_F s0 m1 "
          "to=1)\n");
    CHECK(FindingsText(Edited("rank 0", "SEND_F s0 m0 to=1", " SEND_F s0 m0 to=0\n")) ==
          "message: rank 0, instruction 1: SEND_F s0 m0 to=0 has the wrong peer: the route of "
          "micro-batch 0 wants SEND_F s0 m0 to=1 on rank 0\n");
    CHECK(FindingsText(Edited("rank 0", "SEND_F s0 m0 to=1", " SEND_F s1 m0 to=1\n")) ==
          "message: rank 0: no SEND_F s0 m0 to=1; rank 1 waits for it at 0 (RECV_F s1 m0 from=0)\n"
          "message: rank 0, instruction 1: SEND_F s1 m0 to=1 has no other side: stage 1 is the "
          "last; drop it\n");
    CHECK(FindingsText(Edited("rank 0", "SEND_F s0 m0 to=1",
                              " SEND_F s0 m0 to=1\n RECV_F s1 m0 from=0\n")) ==
          "message: rank 0, instruction 2: RECV_F s1 m0 from=0 has the wrong rank: the route of "
          "micro-batch 0 wants RECV_F s1 m0 from=0 on rank 1\n");
    CHECK(FindingsText(Edited("rank 0", "BW s0 m1", " BW s0 m1\n RECV_B s0 m1 from=1\n")) ==
          "message: rank 0, instruction 8: RECV_B s0 m1 from=1 repeats 6 (RECV_B s0 m1 from=1); "
          "drop one\n");
    CHECK(FindingsText(PlanFromText("route 0 0 : 0\nrank\n F s0 m0\n SEND_F s0 m0 to=0\n"
                                    " F s1 m0\n BW s1 m0\n BW s0 m0\n STEP s0\n STEP s1\n")) ==
          "message: rank 0, instruction 1: SEND_F s0 m0 to=0: stages 0 and 1 of micro-batch 0 are "
          "both on rank 0, nothing is sent between them; drop it\n");
    // One group, so that nothing hangs: the edge is out of order all the same.
    CHECK(FindingsText(PlanFromText(
              "rank\n F s0 m0\n F s0 m1\n SEND_F s0 m1 to=1 group=0\n SEND_F s0 m0 to=1 group=0\n"
              " RECV_B s0 m0 from=1\n BW s0 m0\n RECV_B s0 m1 from=1\n BW s0 m1\n STEP s0\n"
              "rank\n RECV_F s1 m0 from=0\n RECV_F s1 m1 from=0\n F s1 m0\n F s1 m1\n BW s1 m0\n"
              " SEND_B s1 m0 to=0\n BW s1 m1\n SEND_B s1 m1 to=0\n STEP s1\n")) ==
          "message: rank 0, instruction 3: SEND_F s0 m0 to=1 group=0 leaves after 2 (SEND_F s0 m1 "
          "to=1 group=0), but rank 1 receives it before, at 0 and 1; both sides of an edge must "
          "have one order\n");
  }

  TEST_CASE("producer and consumer") {
    CHECK(FindingsText(Edited("rank 0", "F s0 m0", "")) ==
          "complete: rank 0: no forward of stage 0, micro-batch 0; rank 0 must run F s0 m0 once\n");
    CHECK(FindingsText(Edited("rank 0", "F s0 m1", " SEND_F s0 m1 to=1\n F s0 m1\n")) ==
          "message: rank 0, instruction 4: SEND_F s0 m1 to=1 repeats 2 (SEND_F s0 m1 to=1); drop "
          "one\n"
          "producer: rank 0, instruction 2: SEND_F s0 m1 to=1 comes before its producer at 3 (F "
          "s0 m1); move it after\n");
    CHECK(FindingsText(Edited("rank 1", "RECV_F s1 m0 from=0\n F s1 m0",
                              " F s1 m0\n RECV_F s1 m0 from=0\n")) ==
          "consumer: rank 1, instruction 1: RECV_F s1 m0 from=0 comes after its consumer at 0 (F "
          "s1 m0); move it before\n");
  }

  TEST_CASE("group") {
    CHECK(FindingsText(Edited("rank 0", "SEND_F s0 m0 to=1\n F s0 m1\n SEND_F s0 m1 to=1",
                              " SEND_F s0 m0 to=1 group=4\n F s0 m1\n SEND_F s0 m1 to=1 "
                              "group=4\n")) ==
          "group: rank 0, instruction 3: SEND_F s0 m1 to=1 group=4 begins group 4 again, which "
          "ended at 1; the messages of a group must be neighbours\n");
  }

  TEST_CASE("reduce") {
    CHECK(FindingsText(Edited("rank 0", "STEP s0", " REDUCE s0\n STEP s0\n")) ==
          "reduce: rank 0, instruction 8: REDUCE s0: the stage has a single copy, nothing to sum; "
          "drop it\n");
    CHECK(FindingsText(Copies(kEnd, " STEP s0\n REDUCE s1\n REDUCE s1\n STEP s1\n")) ==
          "reduce: rank 1: no REDUCE s0; the stage has 2 copies, each rank that holds one must run "
          "it once after its last weight gradient\n"
          "reduce: rank 1, instruction 6: REDUCE s1 repeats 5 (REDUCE s1); drop one\n");
    CHECK(FindingsText(PlanFromText("copies 3\nrank\n F s0 m0\n B s0 m0\n REDUCE s0\n W s0 m0\n"
                                    " STEP s0\n")) ==
          "reduce: rank 0, instruction 2: REDUCE s0 stands before 3 (W s0 m0), which it needs; "
          "move it after\n");
  }

  TEST_CASE("step") {
    CHECK(FindingsText(Edited("rank 1", "STEP s1", "")) ==
          "step: rank 1: no STEP s1; each rank that holds the stage must run it once\n");
    CHECK(FindingsText(Copies(kEnd, " STEP s0\n REDUCE s0\n REDUCE s1\n STEP s1\n STEP s1\n")) ==
          "step: rank 1, instruction 4: STEP s0 stands before 5 (REDUCE s0), which it needs; move "
          "it after\n"
          "step: rank 1, instruction 8: STEP s1 repeats 7 (STEP s1); drop one\n");
  }

  TEST_CASE("all violations at once in a fixed order") {
    const Plan plan = Edited("rank 1", "RECV_F s1 m1 from=0\n B s1 m0\n SEND_B s1 m0 to=0",
                             " SEND_B s1 m0 to=1\n B s1 m0 slot=1\n B s1 m0\n STEP s0\n");
    CHECK(ChecksOf(Verify(plan)) ==
          std::vector<std::string>{"level", "owner", "complete", "message"});
    CHECK(Verify(plan) == Verify(plan));
  }

  TEST_CASE("a plan that claims far more than it has costs nothing") {
    Plan plan = PlanFromText("rank\n F s0 m0\n BW s0 m0\n");
    plan.stages = 128;
    plan.microbatches = kMaxMicrobatches;
    plan.routes[0].ranks.assign(128, 0);
    plan.routes[0].microbatches.clear();
    for (int m = 0; m < kMaxMicrobatches; ++m) plan.routes[0].microbatches.push_back(m);
    CHECK(FindingsText(plan) ==
          "complete: the programs have 2 instructions, but 128 stages x 1048576 micro-batches need "
          "at least 134217728\n");
  }

  TEST_CASE("a thousand of one check are listed the rest counted") {
    Plan plan = PlanFromText("rank\n");
    plan.stages = plan.microbatches = 100;
    plan.routes[0].ranks.assign(100, 0);
    plan.routes[0].microbatches.clear();
    for (int m = 0; m < 100; ++m) plan.routes[0].microbatches.push_back(m);
    const std::vector<Finding> findings = Verify(plan);
    REQUIRE(findings.size() == 1001);
    CHECK(findings.back() ==
          Finding{"complete", -1, -1, "and 19000 more of this check; fix these first"});
  }
}

}  // namespace
}  // namespace contraflow::verify_test
