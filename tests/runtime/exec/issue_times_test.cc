#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "runtime/exec/issuer.h"
#include "tests/runtime/exec/issue_log.h"
#include "tests/support/run_support.h"

namespace contraflow::issue_times_test {
namespace {

Plan PlanOf(const char* schedule, int ranks, int microbatches, int members) {
  return PlanFor(GroupModel(), schedule, ranks, microbatches, members, Level::kBuffer, 1);
}

constexpr IssueOptions kEager = {.graph = false, .stamps = false, .run_ahead = 1 << 20};

TEST_SUITE("unit") {
  TEST_CASE("issuer: the host is no further ahead than it may be") {
    const Plan plan = PlanOf("1f1b", 2, 16, 1);
    size_t instructions = 0;
    for (const Program& program : plan.programs) {
      instructions = std::max(instructions, program.size());
    }
    for (const int run_ahead : {2, 3, 8}) {
      CAPTURE(run_ahead);
      Issue bounded(plan, AllDevices(plan),
                    {.graph = false, .stamps = true, .run_ahead = run_ahead});
      bounded.Step(1);
      bounded.Step(2);
      CHECK(FlawOfExecution(plan, bounded.executed) == "");
      // An instruction is at most three kernels, two stamps, an event, and six waits; every half
      // of what it may be ahead ends with an event, and so do both ends of the step.
      CHECK(bounded.gpu.most_waiting() <= static_cast<size_t>(run_ahead) * 14 + 8);
    }
    Issue unbounded(plan, AllDevices(plan), kEager);
    unbounded.Step(1);
    CHECK(unbounded.gpu.most_waiting() > 8 * 14 + 8);
    CHECK(instructions > 100);
  }

  TEST_CASE("issuer: only every so many steps have stamps") {
    const Plan plan = PlanFor(GroupModel(), "zb-1p", 2, 4, 1, Level::kBuffer, 1);
    for (const bool graph : {false, true}) {
      Issue issue(plan, AllDevices(plan), {.graph = graph, .stamps = 3});
      int captures = 0;
      for (int step = 1; step <= 7; ++step) {
        issue.Step(step);
        const bool stamped = step % 3 == 0;
        const auto stamps = std::ranges::count_if(issue.log, [](const GpuCall& call) {
          return call.kind == GpuCall::Kind::kKernel && call.kernel == "Stamp";
        });
        captures += static_cast<int>(
            std::ranges::count(issue.log, GpuCall::Kind::kBeginCapture, &GpuCall::kind));
        if (!graph) CHECK(stamps == (stamped ? 2 * InstructionCount(plan) : 0));
        CHECK(issue.issuer->SpansOf(0).size() == (stamped ? plan.programs[0].size() : 0));
        CHECK(FlawOfExecution(plan, issue.executed) == "");
      }
      CHECK(captures == (graph ? 2 : 0));
    }
  }

  TEST_CASE("issuer: stamps say when instructions ran") {
    for (const bool graph : {false, true}) {
      CAPTURE(graph);
      const Plan plan = PlanOf("zb-1p", 3, 5, 2);
      const std::vector<Device> devices = AllDevices(plan);
      Issue issue(plan, devices, {.graph = graph, .stamps = true});
      issue.links.joining = &issue.gpu;
      for (int step = 1; step <= 2; ++step) {
        issue.Step(step);
        CHECK(FlawOfExecution(plan, issue.executed) == "");
        Time first = 1 << 20;
        for (size_t d = 0; d < devices.size(); ++d) {
          const Program& program = plan.programs[static_cast<size_t>(devices[d].rank)];
          const std::vector<Span> spans = issue.issuer->SpansOf(d);
          REQUIRE(spans.size() == program.size());
          for (size_t index = 0; index < program.size(); ++index) {
            CHECK(spans[index].end > spans[index].start);
            first = std::min(first, spans[index].start);
            for (int a = 0; a < program[index].after_count; ++a) {
              const auto on = static_cast<size_t>(program[index].after[static_cast<size_t>(a)]);
              CHECK(spans[on].end < spans[index].start);
            }
          }
        }
        // A stamp before it can only be the beginning of a meeting, one in each lane.
        size_t lanes = 0;
        for (const auto& device : issue.lanes) lanes += device->streams().size();
        CHECK(first >= 0);
        CHECK(first < static_cast<Time>(lanes));
      }
    }
  }

  TEST_CASE("issuer: both ends of a message begin at the same time") {
    const Plan plan = PlanOf("1f1b", 2, 3, 1);
    Issue issue(plan, AllDevices(plan), {.graph = false, .stamps = true});
    issue.Step(1);
    const auto starts = [&](int rank, Op op) {
      std::vector<Time> times;
      const Program& program = plan.program(rank);
      const std::vector<Span> spans = issue.issuer->SpansOf(static_cast<size_t>(rank));
      for (size_t index = 0; index < program.size(); ++index) {
        if (program[index].op == op) times.push_back(spans[index].start);
      }
      return times;
    };
    CHECK(starts(0, Op::SEND_F) == starts(1, Op::RECV_F));
    CHECK(starts(1, Op::SEND_B) == starts(0, Op::RECV_B));
    CHECK(starts(0, Op::SEND_F).size() == 3);
  }

  TEST_CASE("issuer: who waits is asked whether to go on waiting") {
    int asked = 0;
    const Plan plan = PlanOf("1f1b", 2, 3, 1);
    Issue issue(plan, AllDevices(plan), kEager, 1, [&] {
      if (++asked == 5) throw Aborted();
    });
    CHECK_THROWS_AS(issue.Step(1), Aborted);
    CHECK(asked == 5);
  }
}

}  // namespace
}  // namespace contraflow::issue_times_test
