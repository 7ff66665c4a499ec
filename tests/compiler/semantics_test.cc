// How many queues a rank has: the same verdicts as a simulator which knows nothing of Verify, and
// what is said of plans that are sound under some semantics only.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>

#include "compiler/files/plan_io.h"
#include "compiler/plan/error.h"
#include "compiler/verify/verify.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/queue_run.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::semantics_test {
namespace {

std::string TextOf(const std::vector<Finding>& findings, const Plan& plan) {
  std::string text;
  for (const Finding& finding : findings)
    text += finding.check + ": " + ToString(finding, plan) + "\n";
  return text;
}

/// Small plans of every schedule.
std::vector<Plan> SoundPlans() {
  std::vector<Plan> plans;
  for (const Schedule* schedule : Schedules()) {
    for (const auto& [ranks, microbatches] :
         std::vector<std::pair<int, int>>{{2, 4}, {4, 8}, {5, 10}}) {
      const Spec spec = MakeSpec(schedule->name, ranks, microbatches, UniformCosts(3, 4, 2, ranks));
      if (schedule->reject(spec).empty()) plans.push_back(Compile(spec));
    }
  }
  return plans;
}

/// Changes the order in ways that keep each rank's own work in order now and then, and what waits
/// there are.
class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  Plan Mutate(Plan plan) {
    const bool waits = Below(2) == 0;
    const size_t edits = waits ? 4 + Below(8) : 1 + Below(4);
    for (size_t edit = 0; edit < edits; ++edit) {
      Program& program = plan.programs[Below(plan.programs.size())];
      switch (Below(waits ? 40 : 12)) {
        case 0:  // Anything, anywhere.
          Move(&program, Below(program.size()), Below(program.size()));
          break;
        case 1:
          MoveMessage(&program);
          break;
        default:
          PassMessages(&program, !waits && Below(4) > 0);
      }
    }
    if (waits) AddWaits(&plan);
    if (waits && Below(2) == 0) MoveWait(&plan, Below(plan.programs.size()));
    return plan;
  }

 private:
  size_t Below(size_t size) { return static_cast<size_t>(random_() % size); }

  static void Move(Program* program, size_t from, size_t to) {
    const auto begin = program->begin();
    const auto at = [begin](size_t k) { return begin + static_cast<std::ptrdiff_t>(k); };
    if (from < to) std::rotate(at(from), at(from + 1), at(to + 1));
    if (to < from) std::rotate(at(to), at(from), at(from + 1));
  }

  /// A message a few places up or down.
  void MoveMessage(Program* program) {
    std::vector<size_t> messages;
    for (size_t k = 0; k < program->size(); ++k) {
      if (IsMessage((*program)[k].op)) messages.push_back(k);
    }
    if (messages.empty()) return;
    const size_t from = messages[Below(messages.size())], far = 1 + Below(4);
    const size_t to =
        Below(2) == 0 ? from - std::min(from, far) : std::min(from + far, program->size() - 1);
    Move(program, from, to);
  }

  /// A message goes after the next ones of its rank that have another peer, or another direction.
  void PassMessages(Program* program, bool peers) {
    const size_t from = Below(program->size());
    const Instruction moved = (*program)[from];
    if (!IsMessage(moved.op)) return;
    size_t to = from;
    for (size_t k = from + 1; k < program->size() && Below(6) > 0; ++k) {
      const Instruction& i = (*program)[k];
      if (IsRecv(moved.op) && !IsMessage(i.op) && i.microbatch == moved.microbatch) break;
      if (IsMessage(i.op) && i.peer == moved.peer && (peers || IsSend(i.op) == IsSend(moved.op)))
        break;
      to = k;
    }
    Move(program, from, to);
  }

  /// A WAIT_SEND for every SEND: at the end, now and then earlier, or right after it.
  void AddWaits(Plan* plan) {
    const size_t early = Below(4), far = early > 1 ? 2 : 12;
    plan->marks.resize(plan->programs.size());
    for (size_t r = 0; r < plan->programs.size(); ++r) {
      const Program& program = plan->programs[r];
      for (size_t k = 0; k < program.size(); ++k) {
        if (!IsSend(program[k].op)) continue;
        const size_t before = early > 1 || (early == 1 && Below(8) == 0)
                                  ? std::min(k + 1 + Below(far), program.size())
                                  : program.size();
        plan->marks[r].push_back(
            {.kind = program[k].op == Op::SEND_F ? MarkKind::kWaitSendF : MarkKind::kWaitSendB,
             .stage = program[k].stage,
             .microbatch = program[k].microbatch,
             .before = static_cast<int32_t>(before)});
      }
      Sort(&plan->marks[r]);
    }
  }

  void MoveWait(Plan* plan, size_t rank) {
    std::vector<Mark>& marks = plan->marks[rank];
    if (marks.empty()) return;
    const size_t which = Below(marks.size());
    if (Below(8) == 0) {
      marks.erase(marks.begin() + static_cast<std::ptrdiff_t>(which));
    } else {
      marks[which].before = static_cast<int32_t>(Below(plan->programs[rank].size() + 1));
    }
    Sort(&marks);
  }

  static void Sort(std::vector<Mark>* marks) {
    std::ranges::stable_sort(*marks,
                             [](const Mark& a, const Mark& b) { return a.before < b.before; });
  }

  std::mt19937_64 random_;
};

TEST_SUITE("property") {
  TEST_CASE("each semantics: the same verdicts as the simulator's on a thousand mutants") {
    const std::vector<Plan> plans = SoundPlans();
    std::array<int, 5> sound{};
    for (uint64_t seed = 0; seed < static_cast<uint64_t>(CasesToDraw(1000)); ++seed) {
      const Plan plan = Mutator(seed).Mutate(plans[seed % plans.size()]);
      CAPTURES(seed, plan.schedule);
      size_t count = 0;
      for (const Semantics semantics : kEverySemantics) {
        CAPTURE(Name(semantics));
        const std::vector<Finding> findings = Verify(plan, semantics);
        CAPTURE(TextOf(findings, plan));
        const std::string ran = RunQueues(plan, semantics);
        CAPTURE(ran);
        CHECK(findings.empty() == ran.empty());
        // A plan that runs under one runs under the next.
        if (findings.empty()) ++count;
        if (count > 0) CHECK(findings.empty());
      }
      ++sound[count];
    }
    MESSAGE("sound under none to all four: " << sound[0] << " " << sound[1] << " " << sound[2]
                                             << " " << sound[3] << " " << sound[4]);
    for (const int mutants : sound) CHECK((kSanitized || mutants >= 5));
  }
}

/// Two stages that exchange an activation and a gradient head on.
std::string Exchange() {
  return "rank\n F s0 m0\n SEND_F s0 m0 to=1\n F s0 m1\n SEND_F s0 m1 to=1\n RECV_B s0 m0 from=1\n"
         " BW s0 m0\n RECV_B s0 m1 from=1\n BW s0 m1\n STEP s0\n"
         "rank\n RECV_F s1 m0 from=0\n F s1 m0\n BW s1 m0\n SEND_B s1 m0 to=0\n"
         " RECV_F s1 m1 from=0\n F s1 m1\n BW s1 m1\n SEND_B s1 m1 to=0\n STEP s1\n";
}

TEST_SUITE("unit") {
  TEST_CASE("an exchange needs a queue per edge, and a wait for the send a buffer") {
    Plan plan = PlanFromText(Exchange());
    CHECK(TextOf(Verify(plan, Semantics::kPair), plan) ==
          "deadlock: rank 0, instruction 3 (SEND_F s0 m1 to=1): rank 0 waits at 3 (SEND_F s0 m1 "
          "to=1) for rank 1, which waits at 3 (SEND_B s1 m0 to=0) for rank 0; change the order on "
          "one of them\n");
    CHECK(Verify(plan, Semantics::kEdge).empty());
    // Rank 1 waits for its gradient to arrive before it receives what rank 0 sends first.
    plan.marks = {{{.kind = MarkKind::kWaitSendF, .stage = 0, .microbatch = 0, .before = 4},
                   {.kind = MarkKind::kWaitSendF, .stage = 0, .microbatch = 1, .before = 4}},
                  {{.kind = MarkKind::kWaitSendB, .stage = 1, .microbatch = 0, .before = 4},
                   {.kind = MarkKind::kWaitSendB, .stage = 1, .microbatch = 1, .before = 8}}};
    CHECK(TextOf(Verify(plan, Semantics::kEdge), plan) ==
          "deadlock: rank 0, instruction 4 (RECV_B s0 m0 from=1): rank 0 waits at WAIT_SEND_F s0 "
          "m1 before=4 for its 3 (SEND_F s0 m1 to=1), and so for rank 1, which waits at "
          "WAIT_SEND_B s1 m0 before=4 for its 3 (SEND_B s1 m0 to=0), and so for rank 0; change the "
          "order on one of them\n");
    CHECK(Verify(plan, Semantics::kBuffered).empty());
  }

  TEST_CASE("a queue per pair: what stands after another message") {
    // Rank 0 needs the gradient of m0 first, but its RECV is queued after that of m1's SEND.
    const Plan plan = PlanFromText(
        "rank\n F s0 m0\n F s0 m1\n SEND_F s0 m0 to=1\n SEND_F s0 m1 to=1\n RECV_B s0 m0 from=1\n"
        " BW s0 m0\n RECV_B s0 m1 from=1\n BW s0 m1\n STEP s0\n"
        "rank\n RECV_F s1 m0 from=0\n F s1 m0\n BW s1 m0\n SEND_B s1 m0 to=0\n"
        " RECV_F s1 m1 from=0\n F s1 m1\n BW s1 m1\n SEND_B s1 m1 to=0\n STEP s1\n");
    CHECK(RunQueues(plan, Semantics::kPair) == "stuck: rank 0");
    CHECK(TextOf(Verify(plan, Semantics::kPair), plan).find("deadlock: rank 0") == 0);
    CHECK(Verify(plan, Semantics::kEdge).empty());
  }

  TEST_CASE("marks must go with the program") {
    const Plan sound = PlanFromText(
        "rank\n F s0 m0\n SEND_F s0 m0 to=1\n RECV_B s0 m0 from=1\n BW s0 m0\n STEP s0\n"
        "rank\n RECV_F s1 m0 from=0\n F s1 m0\n BW s1 m0\n SEND_B s1 m0 to=0\n STEP s1\n");
    const auto with = [&sound](std::vector<std::string> first, std::vector<std::string> second) {
      Plan plan = sound;
      plan.marks.resize(2);
      for (const std::string& text : first) plan.marks[0].push_back(ParseMark(text));
      for (const std::string& text : second) plan.marks[1].push_back(ParseMark(text));
      return FindingsText(plan);
    };
    const std::string wait_f = "WAIT_SEND_F s0 m0 before=5", wait_b = "WAIT_SEND_B s1 m0 before=5";
    CHECK(with({"UNSHARD s0 before=0", "IDLE before=1 count=3", wait_f}, {wait_b}) == "");
    CHECK(with({wait_f}, {}) ==
          "message: rank 1, instruction 3: SEND_B s1 m0 to=0 has no WAIT_SEND after it, as others "
          "have; add one: without it PyTorch keeps the message for ever\n");
    CHECK(with({"WAIT_SEND_F s0 m0 before=1"}, {wait_b}) ==
          "message: rank 0, instruction 1 (SEND_F s0 m0 to=1): WAIT_SEND_F s0 m0 before=1 waits "
          "for 1 (SEND_F s0 m0 to=1), which comes later; move it after\n"
          "message: rank 0, instruction 1: SEND_F s0 m0 to=1 has no WAIT_SEND after it, as others "
          "have; add one: without it PyTorch keeps the message for ever\n");
    CHECK(with({wait_f, wait_f}, {wait_b}) ==
          "message: rank 0: WAIT_SEND_F s0 m0 before=5 waits for 1 (SEND_F s0 m0 to=1) again; drop "
          "one\n");
    CHECK(with({wait_f, "WAIT_SEND_B s0 m0 before=5"}, {wait_b}) ==
          "message: rank 0: WAIT_SEND_B s0 m0 before=5: the rank has no such SEND; drop it\n");
    CHECK(with({"REDUCE_GRAD s0 before=4"}, {"REDUCE_GRAD s1 before=4"}) == "");
    CHECK(with({"REDUCE_GRAD s0 before=3"}, {"REDUCE_GRAD s1 before=4"}) ==
          "reduce: rank 0, instruction 3 (BW s0 m0): REDUCE_GRAD s0 before=3 comes before 3 (BW s0 "
          "m0), whose gradient it needs; move it after\n");
    CHECK(
        with({"REDUCE_GRAD s0 before=4", "REDUCE_GRAD s0 before=4"}, {}) ==
        "reduce: rank 0, instruction 4 (STEP s0): REDUCE_GRAD s0 before=4 scales the gradients of "
        "the stage again; drop one\n"
        "reduce: rank 1: no REDUCE_GRAD s1, which other stages have: its gradients are not scaled; "
        "add one after its last weight gradient\n");
    CHECK(with({"REDUCE_GRAD s0 before=4", "WAIT_REDUCE_GRAD s0 before=4"},
               {"REDUCE_GRAD s1 before=4"}) ==
          "reduce: rank 1, instruction 4 (STEP s1): REDUCE_GRAD s1 before=4 has no "
          "WAIT_REDUCE_GRAD after it; add one\n");
    CHECK(with({"IDLE before=6"}, {}) ==
          "shape: rank 0: IDLE before=6: out of range; stage and micro-batch must be the plan's, "
          "\"before\" must ascend and be at most the length of the program\n");
    Plan one = sound;
    one.marks.resize(1);
    CHECK(FindingsText(one) ==
          "shape: there are 1 lists of marks; where there are any each of the 2 ranks must have "
          "one\n");
  }

  TEST_CASE("semantics and marks in a plan file") {
    Plan plan = PlanFromText(Exchange());
    plan.schedule = "imported";
    plan.semantics = Semantics::kEdge;
    plan.marks = {{ParseMark("IDLE before=0 count=2"), ParseMark("UNSHARD s0 before=9")}, {}};
    CHECK(FindingsText(plan) == "");
    const std::string text = WritePlan(plan);
    CHECK(Contains(text, "\"semantics\": \"edge\""));
    CHECK(ReadPlan(text, "p.json") == plan);
    CHECK(ReadPlan(WritePlanBinary(plan), "p.cbor") == plan);
    const auto why = [&text](const std::string& from, const std::string& to) {
      std::string changed = text;
      changed.replace(changed.find(from), from.size(), to);
      return Failure([&] { ReadPlan(changed, "p.json"); });
    };
    CHECK(why("\"edge\"", "\"edges\"") ==
          "p.json: /semantics: unknown semantics \"edges\" (did you mean \"edge\"?); semantics are "
          "rank, pair, edge, buffered");
    CHECK(why("UNSHARD s0 before=9", "UNSHARD s0 before=10") ==
          "p.json: /marks/0/1: mark \"UNSHARD s0 before=10\": \"before\" must be in 0..9, is 10");
    CHECK(why("UNSHARD s0", "UNSHARD s2") ==
          "p.json: /marks/0/1: mark \"UNSHARD s2 before=9\": the stage must be in 0..1, is 2");
    CHECK(why("UNSHARD s0 before=9\"", "UNSHARD s0 before=9\",\n\"IDLE before=8\"") ==
          "p.json: /marks/0/2: mark \"IDLE before=8\": stands after one before 9; \"before\" must "
          "ascend");
    CHECK(Contains(why("UNSHARD s0 before=9", "IDLE s0 before=9"), "a mark is written like"));
    CHECK(why("\n[\n]\n]\n}", "\n[\n], []\n]\n}") ==
          "p.json: /marks: must have 2 lists of marks, one for each rank, has 3");
  }

  TEST_CASE("ParseMark is the inverse of ToString and takes nothing else") {
    for (const char* text :
         {"IDLE before=0", "IDLE before=3 count=2", "WAIT_SEND_F s1 m2 before=3",
          "WAIT_SEND_B s0 m0 before=0", "UNSHARD s3 before=1", "RESHARD s3 before=1",
          "REDUCE_GRAD s3 before=1", "WAIT_REDUCE_GRAD s3 before=1"}) {
      CHECK(ToString(ParseMark(text)) == text);
    }
    for (const char* text :
         {"", "IDLE", "IDLE before=", "IDLE before=-1", "IDLE before=01", "IDLE before=0 count=1",
          "IDLE before=0 count=0", "IDLE s0 before=0", "UNSHARD before=0", "UNSHARD s0 m0 before=0",
          "UNSHARD s0 before=0 ", " UNSHARD s0 before=0", "WAIT_SEND_F s0 before=0",
          "UNSHARDS s0 before=0", "UNSHARD s99999999999 before=0", "UNSHARD s0 before=0 count=2"}) {
      CAPTURE(text);
      CHECK_THROWS_AS(ParseMark(text), Error);
    }
  }
}

}  // namespace
}  // namespace contraflow::semantics_test
