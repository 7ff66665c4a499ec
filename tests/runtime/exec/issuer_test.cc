#include "runtime/exec/issuer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/runtime/exec/issue_log.h"
#include "tests/support/failure.h"
#include "tests/support/run_support.h"
#include "tests/support/support.h"

namespace contraflow::issuer_test {
namespace {

Plan PlanOf(const char* schedule, int ranks, int microbatches, int members, uint64_t seed = 1) {
  return PlanFor(GroupModel(), schedule, ranks, microbatches, members, Level::kBuffer, seed);
}

constexpr IssueOptions kEager = {.graph = false, .stamps = false, .run_ahead = 1 << 20};
constexpr IssueOptions kGraph = {.graph = true, .stamps = false};

/// Whether the two are on one lane.
bool Together(const Instruction& a, const Instruction& b) {
  return LaneOf(a.op) == LaneOf(b.op) && a.peer == b.peer;
}

/// How often each call occurs in a step of the whole plan.
std::vector<std::string> ExpectedCalls(const Plan& plan) {
  std::vector<std::string> calls;
  const int devices = plan.data_parallel * plan.expert_parallel;
  for (const Program& program : plan.programs) {
    for (const Instruction& i : program) {
      const std::string members = std::to_string(plan.expert_parallel);
      if (WorkOf(i.op) == Work::kSend) {
        for (int d = 0; d < devices; ++d) calls.push_back("transfer 2");
      } else if (WorkOf(i.op) == Work::kAllToAll) {
        for (int d = 0; d < plan.data_parallel; ++d) calls.push_back("exchange " + members);
      }
    }
  }
  for (const std::vector<int>& holders : HoldersOfStage(plan)) {
    const size_t copies = holders.size() * static_cast<size_t>(devices);
    if (copies > 1) calls.push_back("sum " + std::to_string(copies));
  }
  std::ranges::sort(calls);
  return calls;
}

/// Two messages of rank 0 that are posted together, and what waits for them.
const char* const kGroup = R"(
route 0 1 : 0
route 1 0 : 1
rank
 ATTN_F s0 l0 m0 lane=compute
 SEND_F s0 m0 to=1 group=3 lane=send after=0
 RECV_F s1 m1 from=1 group=3 lane=recv
 ATTN_F s1 l0 m1 lane=compute after=2
rank
 ATTN_F s0 l0 m1 lane=compute
 SEND_F s0 m1 to=0 group=3 lane=send after=0
 RECV_F s1 m0 from=0 group=3 lane=recv
 ATTN_F s1 l0 m0 lane=compute after=2
)";

TEST_SUITE("unit") {
  TEST_CASE("issuer: exactly the plan's instructions and lanes and events") {
    for (const char* schedule : {"1f1b", "zb-1p", "dualpipe"}) {
      for (const int members : {1, 2}) {
        CAPTURES(schedule, members);
        const Plan plan = PlanOf(schedule, 4, 8, members);
        Issue issue(plan, AllDevices(plan), kEager);
        for (int step = 1; step <= 2; ++step) {
          issue.links.calls.clear();
          issue.Step(step);
          CHECK(FlawOfIssue(plan, issue.log) == "");
          CHECK(FlawOfExecution(plan, issue.executed) == "");
          std::ranges::sort(issue.links.calls);
          CHECK(issue.links.calls == ExpectedCalls(plan));
        }
        CHECK(issue.backends[1]->uploads == std::vector<int>{1, 2});
      }
    }
  }

  TEST_CASE("issuer: a graph has the same nodes and edges and is captured once") {
    for (const char* schedule : {"1f1b", "zb-1p", "dualpipe"}) {
      for (const int members : {1, 2}) {
        CAPTURES(schedule, members);
        const Plan plan = PlanOf(schedule, 4, 8, members);
        Issue issue(plan, AllDevices(plan), kGraph, 3);
        issue.Step(1);
        // Calls that are captured, without the launch that follows.
        using Kind = GpuCall::Kind;
        const auto end = std::ranges::find_if(
            issue.log, [](const GpuCall& call) { return call.kind == Kind::kEndCapture; });
        REQUIRE(end != issue.log.end());
        CHECK(issue.log.front().kind == Kind::kBeginCapture);
        CHECK(FlawOfIssue(plan, {issue.log.begin(), end}) == "");
        CHECK(FlawOfExecution(plan, issue.executed) == "");
        for (int step = 2; step <= 3; ++step) {
          issue.Step(step);
          REQUIRE(issue.log.size() == 2);
          CHECK(issue.log[0].kind == Kind::kGraph);
          CHECK(issue.log[1].kind == Kind::kRecord);
          CHECK(FlawOfExecution(plan, issue.executed) == "");
        }
        CHECK(issue.backends[0]->uploads == std::vector<int>{1, 2, 3});
        // The next step's data are made ready before anything of this one has run.
        CHECK((issue.backends[0]->prepared ==
               std::vector<std::pair<int, size_t>>{{2, 0}, {3, 0}, {4, 0}}));
        // No backend that does not guard its updates runs ahead.
        CHECK_FALSE(issue.issuer->BeginAhead(4));
      }
    }
  }

  TEST_CASE("issuer: without any one of the events it is noticed") {
    for (const char* schedule : {"1f1b", "zb-1p", "dualpipe"}) {
      CAPTURE(schedule);
      const Plan plan = PlanOf(schedule, 2, 4, 1, 5);
      int removed = 0;
      for (int rank = 0; rank < plan.ranks; ++rank) {
        const Program& program = plan.program(rank);
        for (size_t index = 0; index < program.size(); ++index) {
          const Instruction& i = program[index];
          for (int a = 0; a < i.after_count; ++a) {
            const auto on = static_cast<size_t>(i.after[static_cast<size_t>(a)]);
            if (Together(i, program[on])) continue;
            Plan other = plan;
            Instruction& less = other.program(rank)[index];
            std::copy(i.after.begin() + a + 1, i.after.end(), less.after.begin() + a);
            --less.after_count;
            Issue issue(other, AllDevices(other), kEager);
            issue.Step(1);
            CAPTURES(rank, ToString(i));
            CHECK(FlawOfIssue(other, issue.log) == "");
            CHECK(Contains(FlawOfIssue(plan, issue.log), " waits for "));
            ++removed;
          }
        }
      }
      CHECK(removed > 50);
    }
  }

  TEST_CASE("issuer: a lane waits for nothing of its own") {
    Plan plan = PlanFromText(kGroup);
    plan.programs[0][3].after = {0, 2};
    plan.programs[0][3].after_count = 2;
    Issue issue(plan, AllDevices(plan), kEager);
    issue.Step(1);
    CHECK(FlawOfIssue(plan, issue.log) == "");
  }

  TEST_CASE("issuer: lanes have an event for each instruction that another lane waits for") {
    const Plan plan = PlanOf("dualpipe", 4, 8, 2);
    for (int rank = 0; rank < plan.ranks; ++rank) {
      std::vector<GpuCall> log;
      EmulatedGpu gpu(EmulatedGpuOptions{.log = &log});
      gpu.Partition(1, 0);
      const GpuLanes lanes(plan, {0, 0, rank}, gpu, 0, 100);
      const Program& program = plan.program(rank);
      std::set<int32_t> awaited;
      for (const Instruction& i : program) {
        for (int a = 0; a < i.after_count; ++a) {
          const int32_t on = i.after[static_cast<size_t>(a)];
          if (!Together(i, program[static_cast<size_t>(on)])) awaited.insert(on);
        }
      }
      std::set<const GpuEvent*> events;
      for (size_t index = 0; index < program.size(); ++index) {
        CHECK((lanes.EventAt(index) != nullptr) ==
              (awaited.count(static_cast<int32_t>(index)) > 0));
        if (lanes.EventAt(index) != nullptr) events.insert(lanes.EventAt(index));
        CHECK(lanes.StreamAt(index).sms == 100);
      }
      CHECK(events.size() == awaited.size());
      // Events are counted as they are made: the next one is the first that is none of them.
      gpu.Record(gpu.NewEvent(), lanes.streams()[0]);
      CHECK(log.back().event == static_cast<int>(awaited.size()));
    }
  }

  TEST_CASE("issuer: one device of many issues its own program") {
    const Plan plan = PlanOf("dualpipe", 4, 8, 2);
    const Device device = {0, 1, 2};
    Issue issue(plan, {device}, kEager);
    issue.Step(1);
    std::vector<std::string> expected, calls;
    for (const Instruction& i : plan.programs[2]) {
      const Work work = WorkOf(i.op);
      if (work == Work::kSend || work == Work::kRecv) expected.push_back("transfer 1");
      if (work == Work::kAllToAll) expected.push_back("exchange 1");
      if (work == Work::kReduce) expected.push_back("sum 1");
    }
    for (const std::string& call : issue.links.calls) {
      if (!Contains(call, "group")) calls.push_back(call);
    }
    CHECK(calls == expected);
  }

  TEST_CASE("issuer: messages of a group begin together") {
    const Plan plan = PlanFromText(kGroup);
    for (int rank = 0; rank < 2; ++rank) {
      Issue issue(plan, {{0, 0, rank}}, kEager);
      issue.Step(1);
      CHECK(issue.links.calls ==
            std::vector<std::string>{"begin group", "transfer 1", "transfer 1", "end group"});
      // No work that only begins with the group is said to be over.
      std::vector<GpuCall::Kind> kinds;
      size_t transfers = 0;
      for (const GpuCall& call : issue.log) {
        if (call.kind == GpuCall::Kind::kKernel && call.kernel.rfind("transfer", 0) == 0) {
          ++transfers;
        }
        if (transfers == 1) kinds.push_back(call.kind);
      }
      CHECK(kinds == std::vector<GpuCall::Kind>{GpuCall::Kind::kKernel});
    }
    Issue both(plan, AllDevices(plan), kEager);
    both.Step(1);
    CHECK(FlawOfIssue(plan, both.log) == "");
    CHECK(both.links.calls == std::vector<std::string>{"transfer 2", "transfer 2"});
  }

  TEST_CASE("issuer: an error says at which instruction") {
    struct Failing : NamedBackend {
      using NamedBackend::NamedBackend;
      void Compute(const Instruction& component, gpu::Stream stream) override {
        if (component.op == Op::MLP_B) throw gpu::GpuError("no such kernel image");
        NamedBackend::Compute(component, stream);
      }
    };
    const Plan plan = PlanOf("1f1b", 2, 3, 1);
    for (const bool graph : {false, true}) {
      Executed executed;
      IssueOver<Failing> issue(plan, AllDevices(plan), {.graph = graph},
                               [&](Device device, Gpu&, GpuLanes&) {
                                 return std::make_unique<Failing>(plan, device, &executed);
                               });
      const std::string text = Failure([&] { issue.Step(1); });
      size_t index = 0;
      while (plan.programs[1][index].op != Op::MLP_B) ++index;
      CHECK(text == "rank 1, instruction " + std::to_string(index) + " (" +
                        ToString(plan.programs[1][index]) + "): no such kernel image");
    }
  }

  TEST_CASE("issuer: plans that cannot be issued are errors") {
    Plan plan = PlanFromText(kGroup);
    plan.programs[0][2].after = {1};
    plan.programs[0][2].after_count = 1;
    CHECK_THROWS_WITH_AS(Issue(plan, AllDevices(plan), kEager),
                         "rank 0, instruction 2 (RECV_F s1 m1 from=1 group=3 lane=recv after=1): "
                         "waits for 1, which is not issued before it; verify the plan",
                         Error);
    plan.programs[0][2].after = {3};
    CHECK_THROWS_AS(Issue(plan, AllDevices(plan), kEager), Error);
    plan.programs[0][2].after = {-1};
    CHECK_THROWS_AS(Issue(plan, AllDevices(plan), kEager), Error);

    const Plan chunks = PlanFromText("rank\n F s0 m0 lane=compute\n");
    IssueOptions still = kEager;
    still.run_ahead = 1;
    CHECK_THROWS_WITH_AS(Issue(chunks, AllDevices(chunks), still),
                         "a host that is at most 1 instructions ahead of the GPU stands still; "
                         "let it be 2 or more",
                         Error);
  }
}

}  // namespace
}  // namespace contraflow::issuer_test
