#include "runtime/exec/issue_order.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compiler/lower/lower.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"

namespace contraflow::issue_order_test {
namespace {

const Instruction& At(const Plan& plan, const std::vector<Device>& devices, IssuePlace place) {
  const int rank = devices[place.device].rank;
  return plan.program(rank)[place.index];
}

/// The participants of a point have this in common, and must be these: written down from the plan
/// alone.
std::vector<std::pair<Device, Instruction>> Expected(const Plan& plan, Device device,
                                                     const Instruction& i) {
  const auto find = [&](int rank, auto matches) -> Instruction {
    for (const Instruction& other : plan.program(rank)) {
      if (matches(other)) return other;
    }
    return {};
  };
  std::vector<std::pair<Device, Instruction>> expected;
  if (i.op == Op::REDUCE) {
    const std::vector<int> holders = HoldersOfStage(plan)[static_cast<size_t>(i.stage)];
    for (int d = 0; d < plan.data_parallel; ++d) {
      for (int e = 0; e < plan.expert_parallel; ++e) {
        for (const int r : holders) {
          expected.push_back({{d, e, r}, find(r, [&](const Instruction& other) {
                                return other.op == i.op && other.stage == i.stage;
                              })});
        }
      }
    }
  } else if (WorkOf(i.op) == Work::kAllToAll) {
    for (int e = 0; e < plan.expert_parallel; ++e) {
      expected.push_back({{device.replica, e, device.rank}, i});
    }
  } else if (WorkOf(i.op) == Work::kSend) {
    const Op op = i.op == Op::SEND_F ? Op::RECV_F : Op::RECV_B;
    const int stage = i.op == Op::SEND_F ? i.stage + 1 : i.stage - 1;
    expected.push_back({device, i});
    expected.push_back(
        {{device.replica, device.member, i.peer}, find(i.peer, [&](const Instruction& other) {
           return other.op == op && other.stage == stage && other.microbatch == i.microbatch &&
                  other.peer == device.rank;
         })});
  } else {
    expected.push_back({device, i});
  }
  return expected;
}

/// Executes the order as if every device took its instructions one by one, or its groups one by
/// one: each point must find all its participants at it.
void CheckOrder(const Plan& plan, const IssueOrder& order, const std::vector<Device>& devices) {
  struct State {
    size_t begin = 0, end = 0;
    std::set<size_t> done;
  };
  std::vector<State> states(devices.size());
  const auto program = [&](size_t device) -> const Program& {
    return plan.programs[static_cast<size_t>(devices[device].rank)];
  };
  const auto open = [&](size_t device) {
    State& state = states[device];
    state.begin = state.end;
    state.done.clear();
    if (state.begin < program(device).size()) state.end = GroupEnd(program(device), state.begin);
  };
  for (size_t device = 0; device < devices.size(); ++device) open(device);
  for (size_t point = 0; point < order.size(); ++point) {
    REQUIRE(!order[point].empty());
    const IssuePlace first = order[point][0];
    const auto expected = Expected(plan, devices[first.device], At(plan, devices, first));
    REQUIRE(order[point].size() == expected.size());
    for (size_t p = 0; p < expected.size(); ++p) {
      const IssuePlace place = order[point][p];
      CHECK(devices[place.device] == expected[p].first);
      CHECK(At(plan, devices, place) == expected[p].second);
    }
    for (const IssuePlace place : order[point]) {
      const auto device = place.device;
      const auto index = place.index;
      State& state = states[device];
      REQUIRE(index >= state.begin);
      REQUIRE(index < state.end);
      REQUIRE(state.done.insert(index).second);
    }
    for (const IssuePlace place : order[point]) {
      const auto device = place.device;
      if (states[device].done.size() == states[device].end - states[device].begin) open(device);
    }
  }
  for (size_t device = 0; device < devices.size(); ++device) {
    CHECK(states[device].begin == program(device).size());
  }
}

/// The whole order with only those of some devices left, which are numbered anew.
std::vector<std::vector<IssuePlace>> Restricted(const IssueOrder& order,
                                                const std::vector<int32_t>& number_of) {
  std::vector<std::vector<IssuePlace>> points;
  for (size_t point = 0; point < order.size(); ++point) {
    std::vector<IssuePlace> left;
    for (const IssuePlace place : order[point]) {
      const int32_t number = number_of[place.device];
      if (number >= 0) left.push_back({static_cast<uint32_t>(number), place.index});
    }
    if (!left.empty()) points.push_back(left);
  }
  return points;
}

std::vector<std::vector<IssuePlace>> PointsOf(const IssueOrder& order) {
  std::vector<std::vector<IssuePlace>> points;
  for (size_t point = 0; point < order.size(); ++point) {
    points.emplace_back(order[point].begin(), order[point].end());
  }
  return points;
}

std::string ErrorOf(const Plan& plan) {
  const std::vector<Device> devices = AllDevices(plan);
  return Failure([&] { const IssueOrder order(plan, devices); });
}

/// Both ranks send before they receive, which ends only if they post both together.
std::string Crossing(const std::string& group) {
  return R"(
route 0 1 : 0
route 1 0 : 1
rank
 F s0 m0
 SEND_F s0 m0 to=1)" +
         group + R"(
 RECV_F s1 m1 from=1)" +
         group + R"(
 F s1 m1
rank
 F s0 m1
 SEND_F s0 m1 to=0)" +
         group + R"(
 RECV_F s1 m0 from=0)" +
         group + R"(
 F s1 m0
)";
}

TEST_SUITE("unit") {
  TEST_CASE("issue order: what is right for one device after the other is right for all") {
    std::mt19937_64 random(1);
    for (const Spec& spec : RandomSpecs(&random, 60, 6, 9)) {
      CAPTURES(spec.schedule, spec.ranks, spec.microbatches);
      Plan plan = Compile(spec);
      plan.expert_parallel = 1 + static_cast<int>(random() % 3);
      const std::vector<Device> devices = AllDevices(plan);
      const IssueOrder order(plan, devices);
      CheckOrder(plan, order, devices);
      CHECK(PointsOf(order) == PointsOf(IssueOrder(plan, devices)));
    }
  }

  TEST_CASE("issue order: members of a group meet at every all-to-all") {
    std::mt19937_64 random(2);
    for (const char* schedule : {"1f1b", "zb-1p", "dualpipe"}) {
      for (const int members : {1, 2, 3}) {
        CAPTURES(schedule, members);
        const CostModel costs = RandomMoeCosts(&random, 2, Overlap::kAll);
        Spec spec = MakeSpec(schedule, 4, 8, costs);
        spec.data_parallel = 2;
        Plan plan = GeneratePlan(spec);
        plan.expert_parallel = members;
        plan = Lower(std::move(plan), costs, {.target = Level::kComponent});
        const std::vector<Device> devices = AllDevices(plan);
        CheckOrder(plan, IssueOrder(plan, devices), devices);
      }
    }
  }

  TEST_CASE("issue order: of some devices it is the order of all without the others") {
    std::mt19937_64 random(3);
    for (const Spec& spec : RandomSpecs(&random, 30, 6, 6)) {
      const Plan plan = Compile(spec);
      const std::vector<Device> devices = AllDevices(plan);
      const IssueOrder whole(plan, devices);
      std::vector<Device> some;
      std::vector<int32_t> number_of(devices.size(), -1);
      std::set<int> ranks;
      for (size_t d = 0; d < devices.size(); ++d) {
        if (random() % 2 == 0) continue;
        number_of[d] = static_cast<int32_t>(some.size());
        some.push_back(devices[d]);
        ranks.insert(devices[d].rank);
      }
      if (ranks.size() < 2) continue;
      CHECK(PointsOf(IssueOrder(plan, some)) == Restricted(whole, number_of));
    }
  }

  TEST_CASE("issue order: of one device it is its program") {
    const Plan plan = Compile(MakeSpec("dualpipe", 4, 10, UniformCosts(3, 3, 3, 1)));
    for (int rank = 0; rank < plan.ranks; ++rank) {
      const std::vector<Device> device = {{0, 0, rank}};
      const IssueOrder order(plan, device);
      REQUIRE(order.size() == plan.program(rank).size());
      for (size_t point = 0; point < order.size(); ++point) {
        REQUIRE(order[point].size() == 1);
        CHECK(order[point][0] == IssuePlace{0, static_cast<uint32_t>(point)});
      }
    }
    CHECK(IssueOrder(plan, {}).size() == 0);
  }

  TEST_CASE("issue order: what is posted together does not wait for each other") {
    const Plan together = PlanFromText(Crossing(" group=0"));
    const std::vector<Device> devices = AllDevices(together);
    const IssueOrder order(together, devices);
    CheckOrder(together, order, devices);
    CHECK(order.size() == 6);
  }

  TEST_CASE("issue order: what is after a group is after all of it") {
    // The one to rank 2 of the two messages of rank 1 is met long before the one from rank 0.
    const Plan plan = PlanFromText(R"(
rank
 F s0 m0
 F s0 m1
 F s0 m2
 SEND_F s0 m0 to=1
rank
 SEND_B s1 m1 to=2 group=0
 RECV_F s1 m0 from=0 group=0
 F s1 m0
rank
 RECV_B s0 m1 from=1
 F s2 m0
)");
    const std::vector<Device> devices = AllDevices(plan);
    const IssueOrder order(plan, devices);
    std::map<std::pair<uint32_t, uint32_t>, size_t> when;
    for (size_t point = 0; point < order.size(); ++point) {
      for (const IssuePlace place : order[point]) when[{place.device, place.index}] = point;
    }
    CHECK(when.size() == 9);
    CHECK(when[{1, 0}] < when[{1, 1}]);
    CHECK(when[{1, 1}] < when[{1, 2}]);
  }

  TEST_CASE("issue order: a circle is an error that names it") {
    CHECK(ErrorOf(PlanFromText(Crossing(""))) ==
          "the plan hangs: rank 0, instruction 1 (SEND_F s0 m0 to=1) waits for rank 1, instruction "
          "2 (RECV_F s1 m0 from=0); rank 1, instruction 1 (SEND_F s0 m1 to=0) waits for rank 0, "
          "instruction 2 (RECV_F s1 m1 from=1); verify the plan");
  }

  TEST_CASE("issue order: reductions that wait for each other are an error that names them") {
    CHECK(ErrorOf(PlanFromText(R"(
route 0 1 : 0
route 1 0 : 1
rank
 REDUCE s0
 REDUCE s1
rank
 REDUCE s1
 REDUCE s0
)")) == "the plan hangs: rank 0, instruction 0 (REDUCE s0) waits for rank 1, instruction 1 "
        "(REDUCE s0); rank 1, instruction 0 (REDUCE s1) waits for rank 0, instruction 1 (REDUCE "
        "s1); verify the plan");
  }

  TEST_CASE("issue order: a rank that waits for a circle is not named") {
    const std::string text = ErrorOf(PlanFromText(R"(
rank
 F s0 m0
 SEND_F s0 m0 to=1
rank
 RECV_B s1 m0 from=2
 RECV_F s1 m0 from=0
 SEND_F s1 m0 to=2
rank
 RECV_F s2 m0 from=1
 SEND_B s2 m0 to=1
)"));
    CHECK(Contains(text, "rank 1, instruction 0"));
    CHECK(Contains(text, "rank 2, instruction 0"));
    CHECK(text.find("rank 0") == text.find("rank 0, instruction 99"));
  }

  TEST_CASE("issue order: a message without its other end is an error that names it") {
    CHECK(ErrorOf(PlanFromText("rank\n SEND_F s0 m0 to=1\nrank\n F s1 m0\n")) ==
          "rank 0, instruction 0 (SEND_F s0 m0 to=1): its peer never receives it; verify the plan");
    CHECK(ErrorOf(PlanFromText("rank\n F s0 m0\nrank\n RECV_F s1 m0 from=0\n")) ==
          "rank 1, instruction 0 (RECV_F s1 m0 from=0): its peer never sends it; verify the plan");
    CHECK(ErrorOf(PlanFromText("rank\n SEND_F s0 m0 to=1\nrank\n RECV_F s1 m1 from=0\n")) ==
          "rank 1, instruction 0 (RECV_F s1 m1 from=0): what comes is of rank 0, instruction 0 "
          "(SEND_F s0 m0 to=1); verify the plan");
    CHECK(ErrorOf(PlanFromText("rank\n SEND_F s0 m0 to=7\nrank\n F s1 m0\n")) ==
          "rank 0, instruction 0 (SEND_F s0 m0 to=7): there is no such peer; verify the plan");
    CHECK(ErrorOf(PlanFromText("rank\n SEND_F s0 m0 to=0\nrank\n F s1 m0\n")) ==
          "rank 0, instruction 0 (SEND_F s0 m0 to=0): there is no such peer; verify the plan");
  }

  TEST_CASE("issue order: a reduction without one of its holders is an error that names it") {
    const std::string routes = "route 0 1 : 0\nroute 1 0 : 1\n";
    CHECK(ErrorOf(PlanFromText(routes + "rank\n REDUCE s0\nrank\n F s0 m1\n")) ==
          "rank 0, instruction 0 (REDUCE s0): rank 1 holds the stage too, and has no such "
          "instruction; verify the plan");
    CHECK(ErrorOf(PlanFromText(routes + "rank\n REDUCE s0\n REDUCE s0\nrank\n REDUCE s0\n")) ==
          "rank 0, instruction 1 (REDUCE s0): a second one of the same stage; verify the plan");
    CHECK(ErrorOf(PlanFromText("rank\n REDUCE s1\nrank\n REDUCE s1\n")) ==
          "rank 0, instruction 0 (REDUCE s1): the rank does not hold the stage; verify the plan");
    CHECK(ErrorOf(PlanFromText("rank\n REDUCE s9\nrank\n REDUCE s1\n")) ==
          "rank 0, instruction 0 (REDUCE s9): the rank does not hold the stage; verify the plan");
  }
}

}  // namespace
}  // namespace contraflow::issue_order_test
