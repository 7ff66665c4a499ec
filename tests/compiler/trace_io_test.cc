#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "compiler/files/trace.h"
#include "compiler/lower/lower.h"
#include "compiler/simulate/simulate.h"
#include "schedules/registry.h"
#include "tests/support/random_plan.h"
#include "tests/support/support.h"

namespace contraflow::trace_io_test {
namespace {

/// Two ranks; the message goes from time 2 to 3.5 units.
Plan SmallPlan() {
  Plan plan;
  plan.schedule = "gpipe";
  plan.level = Level::kComm;
  plan.ranks = plan.stages = 2;
  plan.microbatches = 1;
  plan.routes = {{{0, 1}, {0}}};
  plan.programs = {{CellOp(Op::F, 0, 0), Message(Op::SEND_F, 0, 0, 1), StageOp(Op::STEP, 0)},
                   {Message(Op::RECV_F, 1, 0, 0), CellOp(Op::F, 1, 0)}};
  return plan;
}

constexpr Time kUnit = 1'000'000;

TEST_SUITE("unit") {
  TEST_CASE("the whole trace of a small plan") {
    Timeline timeline;
    timeline.ranks = {{{0, 2 * kUnit}, {2 * kUnit, 3'500'001}, {4 * kUnit, 4 * kUnit}},
                      {{2 * kUnit, 3'500'001}, {3'500'001, 5 * kUnit}}};
    CHECK(WriteTrace(SmallPlan(), timeline) == R"({
"displayTimeUnit": "ms",
"traceEvents": [
{"ph": "M", "pid": 0, "tid": 0, "name": "process_name", "args": {"name": "rank 0"}},
{"ph": "M", "pid": 0, "tid": 0, "name": "thread_name", "args": {"name": "compute"}},
{"ph": "M", "pid": 0, "tid": 4, "name": "thread_name", "args": {"name": "send to 1"}},
{"ph": "X", "pid": 0, "tid": 0, "ts": 0, "dur": 2000, "name": "F s0 m0", "cat": "compute", "args": {"index": 0}},
{"ph": "X", "pid": 0, "tid": 4, "ts": 2000, "dur": 1500.001, "name": "SEND_F s0 m0 to=1", "cat": "send", "args": {"index": 1}},
{"ph": "X", "pid": 0, "tid": 0, "ts": 4000, "dur": 0, "name": "STEP s0", "cat": "step", "args": {"index": 2}},
{"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": "rank 1"}},
{"ph": "M", "pid": 1, "tid": 0, "name": "thread_name", "args": {"name": "compute"}},
{"ph": "M", "pid": 1, "tid": 3, "name": "thread_name", "args": {"name": "receive from 0"}},
{"ph": "X", "pid": 1, "tid": 3, "ts": 2000, "dur": 1500.001, "name": "RECV_F s1 m0 from=0", "cat": "receive", "args": {"index": 0}},
{"ph": "X", "pid": 1, "tid": 0, "ts": 3500.001, "dur": 1499.999, "name": "F s1 m0", "cat": "compute", "args": {"index": 1}},
{"ph": "s", "pid": 0, "tid": 4, "ts": 2000, "id": 0, "name": "activation", "cat": "message"},
{"ph": "f", "pid": 1, "tid": 3, "ts": 2000, "id": 0, "bp": "e", "name": "activation", "cat": "message"}
]
}
)");
  }

  TEST_CASE("an arrow never points back in time also where the receive was posted first") {
    Timeline timeline;
    timeline.measured = true;
    timeline.ranks = {{{0, 20}, {20, 30}, {30, 30}}, {{5, 40}, {40, 50}}};
    const nlohmann::json trace = nlohmann::json::parse(WriteTrace(SmallPlan(), timeline));
    std::map<std::string, double> times;
    for (const auto& event : trace["traceEvents"]) {
      if (event.contains("id")) times[event["ph"]] = event["ts"];
    }
    CHECK(times == std::map<std::string, double>{{"s", 0.02}, {"f", 0.02}});
  }

  TEST_CASE("the k-th send of a message is matched with the k-th receive the rest with none") {
    Plan plan = SmallPlan();
    const Instruction send = plan.programs[0][1], receive = plan.programs[1][0];
    // A gradient of the same stage and micro-batch must not be mixed up with the activation.
    const Instruction gradient = Message(Op::SEND_B, 1, 0, 0);
    plan.programs = {{send, send, send, Message(Op::RECV_B, 0, 0, 1)},
                     {receive, gradient, receive}};
    Timeline timeline;
    timeline.ranks = {{{10, 11}, {20, 21}, {30, 31}, {40, 41}}, {{12, 13}, {39, 40}, {22, 23}}};
    const nlohmann::json trace = nlohmann::json::parse(WriteTrace(plan, timeline));
    std::vector<std::string> arrows;
    for (const auto& event : trace["traceEvents"]) {
      if (!event.contains("id")) continue;
      arrows.push_back(event["ph"].get<std::string>() + event["id"].dump() + " " +
                       event["ts"].dump());
    }
    CHECK(arrows == std::vector<std::string>{"s0 0.039", "f0 0.04", "s1 0.01", "f1 0.012",
                                             "s2 0.02", "f2 0.022"});
  }
}

TEST_SUITE("unit") {
  TEST_CASE("each lane of a rank is a track of its own and no track runs two things at once") {
    std::mt19937_64 random(74);
    const CostModel costs = RandomMoeCosts(&random, 2, Overlap::kAll);
    const Plan plan = Lower(GeneratePlan(MakeSpec("dualpipe", 4, 8, costs)), costs,
                            {.target = Level::kComponent});
    const nlohmann::json trace =
        nlohmann::json::parse(WriteTrace(plan, Simulate(plan, costs).timeline));
    std::map<std::pair<int, int>, std::string> names;
    for (const auto& event : trace["traceEvents"]) {
      if (event["ph"] == "M" && event["name"] == "thread_name") {
        names[{event["pid"], event["tid"]}] = event["args"]["name"];
      }
    }
    std::map<std::pair<int, int>, double> until;
    std::map<std::string, int> events;
    for (const auto& event : trace["traceEvents"]) {
      if (event["ph"] != "X") continue;
      const std::pair<int, int> track = {event["pid"], event["tid"]};
      const Instruction& i =
          plan.programs[event["pid"].get<size_t>()][event["args"]["index"].get<size_t>()];
      const std::string& name = names.at(track);
      CAPTURE(ToString(i));
      CHECK((name == "compute") == (i.lane == Lane::kCompute));
      CHECK((name == "all-to-all") == (i.lane == Lane::kAllToAll));
      CHECK((name == "reduce") == (i.lane == Lane::kReduce));
      CHECK(name.starts_with("send to") == (i.lane == Lane::kSend));
      ++events[name];
      if (i.lane != Lane::kCompute && i.lane != Lane::kAllToAll) continue;
      CHECK(event["ts"].get<double>() >= until[track] - 1e-6);
      until[track] = event["ts"].get<double>() + event["dur"].get<double>();
    }
    CHECK(events["compute"] > 100);
    CHECK(events["all-to-all"] > 100);
    CHECK(events["reduce"] == 8);
  }
}

TEST_SUITE("property") {
  TEST_CASE("any plan gives valid JSON with one event for each instruction") {
    std::mt19937_64 random(9);
    for (int i = 0; i < 200; ++i) {
      CAPTURE(i);
      const Plan plan = RandomPlan(&random);
      Timeline timeline;
      for (const Program& program : plan.programs) {
        timeline.ranks.emplace_back();
        for (size_t k = 0; k < program.size(); ++k) {
          const auto start = static_cast<Time>(random() >> 20);
          timeline.ranks.back().push_back({start, start + static_cast<Time>(random() >> 30)});
        }
      }
      const std::string text = WriteTrace(plan, timeline);
      CHECK(WriteTrace(plan, timeline) == text);
      const nlohmann::json trace = nlohmann::json::parse(text);
      int64_t events = 0, starts = 0, finishes = 0;
      std::set<std::pair<int, int>> named, used;
      for (const auto& event : trace["traceEvents"]) {
        const std::string phase = event["ph"];
        const std::pair<int, int> thread(event["pid"], event["tid"]);
        if (phase == "M" && event["name"] == "thread_name") CHECK(named.insert(thread).second);
        if (phase != "M") used.insert(thread);
        if (phase == "X") {
          const Program& program = plan.programs[event["pid"].get<size_t>()];
          const auto index = event["args"]["index"].get<size_t>();
          CHECK(event["name"] == ToString(program.at(index)));
          ++events;
        }
        starts += phase == "s" ? 1 : 0;
        finishes += phase == "f" ? 1 : 0;
      }
      CHECK(events == InstructionCount(plan));
      CHECK(starts == finishes);
      CHECK(named == used);
    }
  }
}

}  // namespace
}  // namespace contraflow::trace_io_test
