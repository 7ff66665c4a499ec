// Rank by rank: what a rank receives comes from its few neighbours, each in the order of their
// programs, so merging its inbox with its own instructions by moment gives its part of the global
// order.

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "compiler/lower/passes.h"
#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"

namespace contraflow {
namespace {

/// An instruction that the pass puts in, and the moment it belongs to. Large plans have millions of
/// them at a time, so no field is kept that none of them has.
struct Insertion {
  Moment moment;
  Op op;
  int32_t stage, microbatch, peer;

  bool operator<(const Insertion& other) const { return moment < other.moment; }
  Instruction instruction() const {
    return {.op = op, .stage = stage, .microbatch = microbatch, .peer = peer};
  }
};

class Inserter {
 public:
  Inserter(Plan plan, const CostModel& costs)
      : plan_(std::move(plan)),
        costs_(costs),
        timeline_(Simulate(plan_, costs).timeline),
        moments_(GlobalOrder(plan_, timeline_)),
        route_of_(RouteOfMicrobatch(plan_)),
        inbox_(plan_.programs.size()) {}

  Plan Run() {
    Reserve();
    for (int r = 0; r < plan_.ranks; ++r) Deliver(r);
    InsertSteps();
    // Each program takes the place of the one it is made of, so that a plan of many millions of
    // instructions is never there twice.
    for (int r = 0; r < plan_.ranks; ++r) Merge(r);
    plan_.level = Level::kComm;
    return std::move(plan_);
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

  /// Makes the inboxes as large as they will be.
  void Reserve() {
    std::vector<size_t> sizes(inbox_.size(), 0);
    for (const std::vector<int>& copies : HoldersOfStage(plan_)) {
      for (const int holder : copies) sizes[static_cast<size_t>(holder)] += 2;  // REDUCE, STEP
    }
    for (int r = 0; r < plan_.ranks; ++r) {
      for (const Instruction& i : plan_.program(r)) {
        ForEachMessage(r, i, [&](const Instruction&, const Instruction& recv) {
          ++sizes[static_cast<size_t>(Owner(recv.stage, recv.microbatch))];
        });
      }
    }
    for (size_t r = 0; r < sizes.size(); ++r) inbox_[r].reserve(sizes[r]);
  }

  /// Puts the RECV of everything rank r sends into the inboxes of its peers.
  void Deliver(int r) {
    const auto rank = static_cast<size_t>(r);
    const Program& program = plan_.programs[rank];
    for (size_t i = 0; i < program.size(); ++i) {
      const Moment behind = {timeline_.ranks[rank][i].end, moments_[rank][i].number + 1};
      ForEachMessage(r, program[i], [&](const Instruction&, const Instruction& recv) {
        inbox_[static_cast<size_t>(Owner(recv.stage, recv.microbatch))].push_back(
            {behind, recv.op, recv.stage, recv.microbatch, recv.peer});
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
        if (reduce) inbox.push_back({reduced, Op::REDUCE, s, -1, -1});
        Moment step = {reduced.time + (reduce ? cost.reduce : 0), reduced.number};
        // A step that takes time must not keep other ranks waiting for this one's gradients.
        if (cost.step > 0) {
          step.time = std::max(step.time, backward_end[static_cast<size_t>(holder)]);
        }
        inbox.push_back({step, Op::STEP, s, -1, -1});
      }
    }
  }

  void Merge(int r) {
    const auto rank = static_cast<size_t>(r);
    const Program program = std::move(plan_.programs[rank]);
    const std::vector<Moment> moments = std::move(moments_[rank]);
    const std::vector<Span> spans = std::move(timeline_.ranks[rank]);
    std::vector<Insertion> inbox = std::move(inbox_[rank]);
    // Stable: messages of one moment (both halves of an FB) keep their order, REDUCE stays before
    // STEP.
    std::stable_sort(inbox.begin(), inbox.end());
    size_t sends = 0;
    for (const Instruction& i : program) {
      ForEachMessage(r, i, [&](const Instruction&, const Instruction&) { ++sends; });
    }
    Program& merged = plan_.programs[rank] = {};
    merged.reserve(program.size() + sends + inbox.size());
    auto next = inbox.begin();
    for (size_t i = 0; i < program.size(); ++i) {
      for (; next != inbox.end() && next->moment < moments[i]; ++next) {
        merged.push_back(next->instruction());
      }
      merged.push_back(program[i]);
      const Moment behind = {spans[i].end, moments[i].number + 1};
      // Whatever else arrives while the instruction runs comes before its own messages.
      bool arrived = false;
      ForEachMessage(r, program[i], [&](const Instruction& send, const Instruction&) {
        for (; !arrived && next != inbox.end() && next->moment < behind; ++next) {
          merged.push_back(next->instruction());
        }
        arrived = true;
        merged.push_back(send);
      });
    }
    for (; next != inbox.end(); ++next) merged.push_back(next->instruction());
  }

  Plan plan_;
  const CostModel& costs_;
  Timeline timeline_;
  std::vector<std::vector<Moment>> moments_;
  const std::vector<int> route_of_;
  std::vector<std::vector<Insertion>> inbox_;
};

}  // namespace

Plan InsertCommunication(Plan plan, const CostModel& costs) {
  CF_ASSERT(plan.level == Level::kCompute);
  return Inserter(std::move(plan), costs).Run();
}

}  // namespace contraflow
