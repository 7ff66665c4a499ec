// Three ways to the same times: Simulate, the longest path in the graph of all dependencies, and a
// simulator that raises times until nothing changes.

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <tuple>

#include "compiler/simulate/idle.h"
#include "compiler/simulate/simulate.h"
#include "tests/support/longest_path.h"
#include "tests/support/naive.h"
#include "tests/support/support.h"

namespace contraflow::fixpoint_test {
namespace {

/// Dependencies of a comm-level plan: a node an instruction, by its number, and one for each SEND
/// that stands for the wire of its directed edge.
class DependencyGraph {
 public:
  DependencyGraph(const Plan& plan, const CostModel& costs) : plan_(plan), costs_(costs) {
    for (const Program& program : plan.programs) {
      first_.push_back(graph_.size);
      graph_.size += static_cast<int>(program.size());
    }
    weight_.resize(static_cast<size_t>(graph_.size), 0);
    for (size_t r = 0; r < plan.programs.size(); ++r) AddRank(r);
    for (const auto& [recv, key] : receives_) Edge(sends_.at(key), recv);
    for (const auto& [reduce, stage] : reduces_) {
      for (const int weight : weights_[stage]) Edge(weight, reduce);
    }
  }

  /// End of every instruction, rank by rank.
  std::vector<Time> Ends() const {
    std::vector<Time> ends = LongestPath(graph_, weight_).value();
    ends.resize(static_cast<size_t>(InstructionCount(plan_)));
    return ends;
  }

 private:
  using Key = std::tuple<bool, int, int>;  // forward?, producing stage, micro-batch

  void Edge(int from, int to) { graph_.edges.push_back({from, to}); }
  void EdgeFrom(const std::map<Key, int>& made, const Key& key, int to) {
    if (made.count(key) > 0) Edge(made.at(key), to);
  }

  void AddRank(size_t r) {
    int lane = -1;
    std::map<int, int> wires;  // the last one to each peer
    std::map<Key, int> made;   // outputs on this rank, made or received
    std::map<int, int> reduced;
    for (size_t k = 0; k < plan_.programs[r].size(); ++k) {
      const Instruction& i = plan_.programs[r][k];
      const int node = first_[r] + static_cast<int>(k);
      Time& weight = weight_[static_cast<size_t>(node)];
      const bool forward = i.op == Op::SEND_F || i.op == Op::RECV_F;
      if (WorkOf(i.op) == Work::kSend) {
        weight = costs_.comm.latency;
        const int wire = graph_.size++;
        weight_.push_back(costs_.comm.occupancy);
        Edge(made.at({forward, i.stage, i.microbatch}), wire);
        Edge(wire, node);
        if (costs_.comm.exclusive()) {
          if (wires.count(i.peer) > 0) Edge(wires.at(i.peer), wire);
          wires[i.peer] = wire;
        }
        sends_[{forward, i.stage, i.microbatch}] = node;
      } else if (WorkOf(i.op) == Work::kRecv) {
        const Key key = {forward, i.stage + (forward ? -1 : 1), i.microbatch};
        receives_[node] = key;
        made[key] = node;
      } else if (i.op == Op::REDUCE) {
        weight = costs_.stage(i.stage).reduce;
        reduces_[node] = i.stage;
        reduced[i.stage] = node;
      } else {
        weight = costs_.Duration(i);
        if (lane >= 0) Edge(lane, node);
        lane = node;
        if (i.op == Op::STEP && reduced.count(i.stage) > 0) Edge(reduced.at(i.stage), node);
        if (HasForward(i.op)) {
          EdgeFrom(made, {true, i.stage - 1, i.microbatch}, node);
          made[{true, i.stage, i.microbatch}] = node;
        }
        if (HasBackward(i.op)) {
          EdgeFrom(made, {false, BackStage(i) + 1, BackMicrobatch(i)}, node);
          made[{false, BackStage(i), BackMicrobatch(i)}] = node;
        }
        if (HasWeight(i.op)) weights_[BackStage(i)].push_back(node);
      }
    }
  }

  const Plan& plan_;
  const CostModel& costs_;
  Digraph graph_;
  std::vector<Time> weight_;
  std::vector<int> first_;  // node of each rank's first instruction
  std::map<Key, int> sends_;
  std::map<int, Key> receives_;
  std::map<int, int> reduces_;
  std::map<int, std::vector<int>> weights_;  // nodes that add to each stage's weight gradients
};

TEST_SUITE("property") {
  TEST_CASE("Simulate longest path and fixpoint give every instruction the same times") {
    std::mt19937_64 random(5);
    for (const Spec& spec : RandomSpecs(&random, 300, 6, 16)) {
      CAPTURES(spec.schedule, spec.ranks, spec.microbatches);
      const Plan plan = Compile(spec);
      const Timeline timeline = Simulate(plan, spec.costs).timeline;
      CHECK(timeline == FixpointTimes(plan, spec.costs));
      std::vector<Time> ends;
      for (const std::vector<Span>& rank : timeline.ranks) {
        for (const Span& span : rank) ends.push_back(span.end);
      }
      CHECK(ends == DependencyGraph(plan, spec.costs).Ends());
    }
  }

  TEST_CASE("Simulate and fixpoint give messages in queues the same times and queues only delay") {
    std::mt19937_64 random(6);
    int longer = 0;
    for (const Spec& spec : RandomSpecs(&random, 300, 6, 16)) {
      CAPTURES(spec.schedule, spec.ranks, spec.microbatches);
      const Plan plan = Compile(spec);
      CostModel costs = spec.costs;
      Time before = Simulate(plan, costs).makespan;
      for (const Semantics queues : {Semantics::kPair, Semantics::kRank}) {
        CAPTURE(Name(queues));
        costs.comm.queues = queues;
        const Simulation run = Simulate(plan, costs);
        CHECK(run.timeline == FixpointTimes(plan, costs));
        CHECK(run.makespan >= before);
        longer += run.makespan > before ? 1 : 0;
        before = run.makespan;
        // Each idle time has one cause, and none of them is that nothing was missing.
        const auto idle = AttributeIdle(plan, costs, run);
        for (size_t r = 0; r < idle.size(); ++r) {
          Time sum = 0;
          for (const Idle& each : idle[r]) {
            sum += each.when.end - each.when.start;
            CHECK(each.cause != IdleCause::kOverhead);
          }
          CHECK(sum == run.ranks[r].bubble);
        }
      }
    }
    CHECK(longer > 50);
  }
}

}  // namespace
}  // namespace contraflow::fixpoint_test
