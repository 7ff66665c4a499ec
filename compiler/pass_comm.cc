// Rank by rank: what a rank receives comes from its few neighbours, each in the order of their
// programs, so merging its inbox with its own instructions by moment gives its part of the global
// order.

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "compiler/error.h"
#include "compiler/passes.h"
#include "compiler/simulate.h"

namespace contraflow {
namespace {

/// An instruction that a pass puts in, and the moment it belongs to.
struct Insertion {
  Moment moment;
  Instruction instruction;

  bool operator<(const Insertion& other) const { return moment < other.moment; }
};

class Inserter {
 public:
  Inserter(const Plan& plan, const CostModel& costs)
      : plan_(plan),
        costs_(costs),
        timeline_(Simulate(plan, costs).timeline),
        moments_(GlobalOrder(plan, timeline_)),
        route_of_(RouteOfMicrobatch(plan)),
        inbox_(plan.programs.size()) {}

  Plan Run() {
    Plan result;
    result.schedule = plan_.schedule;
    result.level = Level::kComm;
    result.ranks = plan_.ranks;
    result.stages = plan_.stages;
    result.microbatches = plan_.microbatches;
    result.data_parallel = plan_.data_parallel;
    result.expert_parallel = plan_.expert_parallel;
    result.routes = plan_.routes;
    result.costs = plan_.costs;
    result.programs.resize(plan_.programs.size());
    for (int r = 0; r < plan_.ranks; ++r) Deliver(r);
    InsertSteps();
    for (int r = 0; r < plan_.ranks; ++r) Merge(r, &result.programs[static_cast<size_t>(r)]);
    return result;
  }

 private:
  int Owner(int stage, int m) const {
    const auto route = static_cast<size_t>(route_of_[static_cast<size_t>(m)]);
    return plan_.routes[route].ranks[static_cast<size_t>(stage)];
  }

  /// What instruction `index` of rank r sends: calls send(SEND, RECV) for each message.
  template <typename Send>
  void ForEachMessage(int r, const Instruction& i, Send send) const {
    if (HasForward(i.op) && i.stage + 1 < plan_.stages) {
      const int to = Owner(i.stage + 1, i.microbatch);
      if (to != r) {
        send(Message(Op::SEND_F, i.stage, i.microbatch, to),
             Message(Op::RECV_F, i.stage + 1, i.microbatch, r));
      }
    }
    if (HasBackward(i.op) && BackStage(i) > 0) {
      const int to = Owner(BackStage(i) - 1, BackMicrobatch(i));
      if (to != r) {
        send(Message(Op::SEND_B, BackStage(i), BackMicrobatch(i), to),
             Message(Op::RECV_B, BackStage(i) - 1, BackMicrobatch(i), r));
      }
    }
  }

  /// Puts the RECV of everything rank r sends into the inboxes of its peers.
  void Deliver(int r) {
    const auto rank = static_cast<size_t>(r);
    const Program& program = plan_.programs[rank];
    for (size_t i = 0; i < program.size(); ++i) {
      const Moment behind = {timeline_.ranks[rank][i].end, moments_[rank][i].number + 1};
      ForEachMessage(r, program[i], [&](const Instruction&, const Instruction& recv) {
        inbox_[static_cast<size_t>(Owner(recv.stage, recv.microbatch))].push_back({behind, recv});
      });
    }
  }

  /// Puts REDUCE and STEP of every stage into the inboxes of its holders.
  void InsertSteps() {
    std::vector<Moment> weighed(static_cast<size_t>(plan_.stages));
    std::vector<Time> backward_end(plan_.programs.size(), 0);
    for (size_t r = 0; r < plan_.programs.size(); ++r) {
      const Program& program = plan_.programs[r];
      for (size_t i = 0; i < program.size(); ++i) {
        const Time end = timeline_.ranks[r][i].end;
        if (HasBackward(program[i].op)) backward_end[r] = end;
        if (!HasWeight(program[i].op)) continue;
        Moment& last = weighed[static_cast<size_t>(BackStage(program[i]))];
        last.time = std::max(last.time, end);
        last.number = std::max(last.number, moments_[r][i].number + 1);
      }
    }
    const std::vector<std::vector<int>> holders = HoldersOfStage(plan_);
    for (int s = 0; s < plan_.stages; ++s) {
      const std::vector<int>& copies = holders[static_cast<size_t>(s)];
      const StageCost& cost = costs_.stage(s);
      const Moment reduced = weighed[static_cast<size_t>(s)];
      const bool reduce = NeedsReduce(plan_, copies.size());
      for (const int holder : copies) {
        std::vector<Insertion>& inbox = inbox_[static_cast<size_t>(holder)];
        if (reduce) inbox.push_back({reduced, StageOp(Op::REDUCE, s)});
        Moment step = {reduced.time + (reduce ? cost.reduce : 0), reduced.number};
        // A step that takes time must not keep other ranks waiting for this one's gradients.
        if (cost.step > 0) {
          step.time = std::max(step.time, backward_end[static_cast<size_t>(holder)]);
        }
        inbox.push_back({step, StageOp(Op::STEP, s)});
      }
    }
  }

  void Merge(int r, Program* merged) {
    const auto rank = static_cast<size_t>(r);
    const Program& program = plan_.programs[rank];
    std::vector<Insertion>& inbox = inbox_[rank];
    // Stable: messages of one moment (both halves of an FB) keep their order, REDUCE stays before
    // STEP.
    std::stable_sort(inbox.begin(), inbox.end());
    merged->reserve(program.size() + 2 * inbox.size());
    auto next = inbox.begin();
    for (size_t i = 0; i < program.size(); ++i) {
      for (; next != inbox.end() && next->moment < moments_[rank][i]; ++next) {
        merged->push_back(next->instruction);
      }
      merged->push_back(program[i]);
      const Moment behind = {timeline_.ranks[rank][i].end, moments_[rank][i].number + 1};
      // Whatever else arrives while the instruction runs comes before its own messages.
      bool arrived = false;
      ForEachMessage(r, program[i], [&](const Instruction& send, const Instruction&) {
        for (; !arrived && next != inbox.end() && next->moment < behind; ++next) {
          merged->push_back(next->instruction);
        }
        arrived = true;
        merged->push_back(send);
      });
    }
    for (; next != inbox.end(); ++next) merged->push_back(next->instruction);
    std::vector<Insertion>().swap(inbox);
  }

  const Plan& plan_;
  const CostModel& costs_;
  const Timeline timeline_;
  const std::vector<std::vector<Moment>> moments_;
  const std::vector<int> route_of_;
  std::vector<std::vector<Insertion>> inbox_;
};

}  // namespace

Plan InsertCommunication(const Plan& plan, const CostModel& costs) {
  CF_ASSERT(plan.level == Level::kCompute);
  return Inserter(plan, costs).Run();
}

}  // namespace contraflow
