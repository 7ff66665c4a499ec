// Replays the simulated times rank by rank: of all that may happen next, the earliest does. Only
// what its dependencies allow is ever a candidate, so ties in time cannot break the order, not even
// where instructions take no time at all.

#include <algorithm>
#include <queue>
#include <tuple>
#include <vector>

#include "compiler/error.h"
#include "compiler/passes.h"
#include "compiler/simulate.h"

namespace contraflow {
namespace {

/// At one moment messages leave first (a SEND stands right behind its producer), then reductions
/// and steps, then the next compute instructions begin.
int Class(Event::Kind kind) {
  switch (kind) {
    case Event::Kind::kTransfer:
      return 0;
    case Event::Kind::kReduce:
      return 1;
    case Event::Kind::kStep:
      return 2;
    case Event::Kind::kCompute:
      return 3;
  }
  return 3;
}

struct Candidate {
  Time time;
  int64_t number;  // of two alike the one that became possible first, so that edges stay in order
  Event event;

  bool operator>(const Candidate& other) const {
    return std::tuple(time, Class(event.kind), number) >
           std::tuple(other.time, Class(other.event.kind), other.number);
  }
};

class Merger {
 public:
  Merger(const Plan& plan, const CostModel& costs)
      : plan_(plan),
        costs_(costs),
        timeline_(Simulate(plan, costs).timeline),
        route_of_(RouteOfMicrobatch(plan)),
        holders_(HoldersOfStage(plan)) {
    const size_t chunks = static_cast<size_t>(plan.stages) * static_cast<size_t>(plan.microbatches);
    f_there_.assign(chunks, false);
    b_there_.assign(chunks, false);
    next_.assign(static_cast<size_t>(plan.ranks), 0);
    offered_.assign(static_cast<size_t>(plan.ranks), false);
    weights_left_.assign(static_cast<size_t>(plan.stages), plan.microbatches);
    weights_end_.assign(static_cast<size_t>(plan.stages), 0);
    backward_end_.assign(static_cast<size_t>(plan.ranks), 0);
    for (size_t r = 0; r < plan.programs.size(); ++r) {
      for (size_t i = 0; i < plan.programs[r].size(); ++i) {
        if (HasBackward(plan.programs[r][i].op)) backward_end_[r] = timeline_.ranks[r][i].end;
      }
    }
  }

  std::vector<Event> Run() {
    order_.reserve(3 * static_cast<size_t>(InstructionCount(plan_)));
    for (int r = 0; r < plan_.ranks; ++r) Offer(r);
    while (!candidates_.empty()) {
      const Candidate next = candidates_.top();
      candidates_.pop();
      order_.push_back(next.event);
      Happen(next);
    }
    for (size_t r = 0; r < next_.size(); ++r) CF_ASSERT(next_[r] == plan_.programs[r].size());
    return std::move(order_);
  }

 private:
  size_t At(int stage, int m) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(plan_.microbatches) +
           static_cast<size_t>(m);
  }
  int Owner(int stage, int m) const {
    const auto route = static_cast<size_t>(route_of_[static_cast<size_t>(m)]);
    return plan_.routes[route].ranks[static_cast<size_t>(stage)];
  }

  void Push(Time time, const Event& event) { candidates_.push({time, number_++, event}); }

  /// Makes the next compute instruction of a rank a candidate, once all it needs has happened.
  void Offer(int r) {
    const auto rank = static_cast<size_t>(r);
    if (offered_[rank] || next_[rank] == plan_.programs[rank].size()) return;
    const Instruction& i = plan_.programs[rank][next_[rank]];
    if (HasForward(i.op) && i.stage > 0 && !f_there_[At(i.stage - 1, i.microbatch)]) return;
    if (HasBackward(i.op) && BackStage(i) + 1 < plan_.stages &&
        !b_there_[At(BackStage(i) + 1, BackMicrobatch(i))]) {
      return;
    }
    offered_[rank] = true;
    Push(timeline_.ranks[rank][next_[rank]].start, {.kind = Event::Kind::kCompute,
                                                    .rank = r,
                                                    .index = static_cast<int>(next_[rank]),
                                                    .op = i.op,
                                                    .stage = i.stage,
                                                    .microbatch = i.microbatch,
                                                    .peer = -1});
  }

  void Happen(const Candidate& candidate) {
    const Event& event = candidate.event;
    switch (event.kind) {
      case Event::Kind::kCompute:
        return Compute(event);
      case Event::Kind::kTransfer:
        (event.op == Op::SEND_F ? f_there_ : b_there_)[At(event.stage, event.microbatch)] = true;
        return Offer(event.peer);
      case Event::Kind::kReduce:
        return OfferSteps(event.stage, candidate.time + costs_.stage(event.stage).reduce);
      case Event::Kind::kStep:
        return;
    }
  }

  void Compute(const Event& event) {
    const auto rank = static_cast<size_t>(event.rank);
    const auto index = static_cast<size_t>(event.index);
    const Instruction& i = plan_.programs[rank][index];
    const Time end = timeline_.ranks[rank][index].end;
    if (HasForward(i.op) && i.stage + 1 < plan_.stages) {
      Leave(Op::SEND_F, event.rank, i.stage, i.stage + 1, i.microbatch, end);
    }
    if (HasBackward(i.op) && BackStage(i) > 0) {
      Leave(Op::SEND_B, event.rank, BackStage(i), BackStage(i) - 1, BackMicrobatch(i), end);
    }
    if (HasWeight(i.op)) Weigh(BackStage(i), end);
    offered_[rank] = false;
    ++next_[rank];
    Offer(event.rank);
  }

  void Leave(Op op, int from, int stage, int next_stage, int m, Time end) {
    const int to = Owner(next_stage, m);
    if (to == from) {
      (op == Op::SEND_F ? f_there_ : b_there_)[At(stage, m)] = true;
      return;
    }
    Push(end, {.kind = Event::Kind::kTransfer,
               .rank = from,
               .index = -1,
               .op = op,
               .stage = stage,
               .microbatch = m,
               .peer = to});
  }

  void Weigh(int s, Time end) {
    const auto stage = static_cast<size_t>(s);
    weights_end_[stage] = std::max(weights_end_[stage], end);
    if (--weights_left_[stage] > 0) return;
    if (holders_[stage].size() == 1 && plan_.data_parallel == 1) {
      OfferSteps(s, weights_end_[stage]);
    } else {
      Push(weights_end_[stage], {.kind = Event::Kind::kReduce,
                                 .rank = -1,
                                 .index = -1,
                                 .op = Op::REDUCE,
                                 .stage = s,
                                 .microbatch = -1,
                                 .peer = -1});
    }
  }

  void OfferSteps(int stage, Time reduced) {
    for (const int holder : holders_[static_cast<size_t>(stage)]) {
      // A step that takes time must not keep other ranks waiting for this one's gradients.
      const Time free =
          costs_.stage(stage).step > 0 ? backward_end_[static_cast<size_t>(holder)] : 0;
      Push(std::max(reduced, free), {.kind = Event::Kind::kStep,
                                     .rank = holder,
                                     .index = -1,
                                     .op = Op::STEP,
                                     .stage = stage,
                                     .microbatch = -1,
                                     .peer = -1});
    }
  }

  const Plan& plan_;
  const CostModel& costs_;
  const Timeline timeline_;
  const std::vector<int> route_of_;
  const std::vector<std::vector<int>> holders_;
  std::vector<bool> f_there_, b_there_;  // the output of a stage, where its consumer is
  std::vector<size_t> next_;
  std::vector<bool> offered_;
  std::vector<int> weights_left_;
  std::vector<Time> weights_end_;
  std::vector<Time> backward_end_;  // last input gradient of each rank
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates_;
  int64_t number_ = 0;
  std::vector<Event> order_;
};

}  // namespace

std::vector<Event> GlobalOrder(const Plan& plan, const CostModel& costs) {
  CF_ASSERT(plan.level == Level::kCompute);
  return Merger(plan, costs).Run();
}

}  // namespace contraflow
