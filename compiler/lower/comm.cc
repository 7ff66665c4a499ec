// The order. Times come from the simulation; the numbers that break ties come from a walk over the
// programs which takes an instruction only when all it needs has been taken. No sorting: each
// rank's moments ascend already, because its lane runs in order.
//
// The messages, rank by rank. The messages to a rank come from its few neighbours, each in the
// order of their programs, so merging its inbox with its own instructions by moment gives its part
// of the global order.

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "compiler/lower/passes.h"
#include "compiler/plan/error.h"
#include "compiler/plan/grid.h"
#include "compiler/simulate/engine.h"

namespace contraflow {
namespace {

class OrderWalk {
 public:
  OrderWalk(const Plan& plan, const Timeline& timeline)
      : plan_(plan),
        timeline_(timeline),
        owner_(plan),
        engine_(plan),
        f_done_(plan.stages, plan.microbatches),
        b_done_(plan.stages, plan.microbatches),
        moments_(plan.programs.size()) {}

  std::vector<std::vector<Moment>> Run() {
    for (size_t r = 0; r < moments_.size(); ++r) moments_[r].reserve(plan_.programs[r].size());
    engine_.Run([&](int r, const Instruction& i, size_t index) {
      return Take(static_cast<size_t>(r), i, index);
    });
    for (size_t r = 0; r < moments_.size(); ++r) {
      CF_ASSERT(moments_[r].size() == plan_.programs[r].size());
    }
    return std::move(moments_);
  }

 private:
  bool Take(size_t rank, const Instruction& i, size_t index) {
    if (IsHostCopy(i.op)) {
      // On a lane of its own: in the order of the program after what stands before it.
      const Time before = moments_[rank].empty() ? 0 : moments_[rank].back().time;
      moments_[rank].push_back({before, number_});
      number_ += 2;
      return true;
    }
    const int stage = BackStage(i), m = BackMicrobatch(i);
    if (HasForward(i.op) && i.stage > 0 && !f_done_(i.stage - 1, i.microbatch)) return false;
    if (HasBackward(i.op) && stage + 1 < plan_.stages && !b_done_(stage + 1, m)) return false;
    moments_[rank].push_back({timeline_.ranks[rank][index].start, number_});
    number_ += 2;
    if (HasForward(i.op)) Done(&f_done_, i.stage, i.microbatch, i.stage + 1);
    if (HasBackward(i.op)) Done(&b_done_, stage, m, stage - 1);
    return true;
  }

  void Done(Grid<bool>* done, int stage, int m, int next_stage) {
    (*done)(stage, m) = true;
    if (next_stage >= 0 && next_stage < plan_.stages) engine_.Wake(owner_(next_stage, m));
  }

  const Plan& plan_;
  const Timeline& timeline_;
  const Owners owner_;
  Engine engine_;
  Grid<bool> f_done_, b_done_;
  int64_t number_ = 0;
  std::vector<std::vector<Moment>> moments_;
};

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
        owner_(plan_),
        inbox_(plan_.programs.size()),
        sends_(plan_.programs.size()) {}

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
  /// A message that an instruction of a rank sends.
  struct Sent {
    bool forward;
    int stage, microbatch, to;  ///< the stage that made it

    Instruction send() const {
      return Message(forward ? Op::SEND_F : Op::SEND_B, stage, microbatch, to);
    }
    Insertion recv(const Moment& moment, int from) const {
      return {moment, forward ? Op::RECV_F : Op::RECV_B, stage + (forward ? 1 : -1), microbatch,
              from};
    }
  };

  /// Calls visit(Sent) for each message that an instruction of rank r sends.
  template <typename Visit>
  void ForEachMessage(int r, const Instruction& i, Visit visit) const {
    if (HasForward(i.op) && i.stage + 1 < plan_.stages) {
      const int to = owner_(i.stage + 1, i.microbatch);
      if (to != r) visit(Sent{true, i.stage, i.microbatch, to});
    }
    if (HasBackward(i.op) && BackStage(i) > 0) {
      const int to = owner_(BackStage(i) - 1, BackMicrobatch(i));
      if (to != r) visit(Sent{false, BackStage(i), BackMicrobatch(i), to});
    }
  }

  /// Counts the messages of each rank, and makes the inboxes as large as they will be.
  void Reserve() {
    std::vector<size_t> sizes(inbox_.size(), 0);
    for (const std::vector<int>& copies : HoldersOfStage(plan_)) {
      for (const int holder : copies) sizes[static_cast<size_t>(holder)] += 2;  // REDUCE, STEP
    }
    for (int r = 0; r < plan_.ranks; ++r) {
      for (const Instruction& i : plan_.program(r)) {
        ForEachMessage(r, i, [&](const Sent& sent) {
          ++sizes[static_cast<size_t>(sent.to)];
          ++sends_[static_cast<size_t>(r)];
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
      ForEachMessage(r, program[i], [&](const Sent& sent) {
        inbox_[static_cast<size_t>(sent.to)].push_back(sent.recv(behind, r));
      });
    }
  }

  /// Puts REDUCE and STEP of every stage into the inboxes of its holders.
  void InsertSteps() {
    std::vector<Moment> weighed(static_cast<size_t>(plan_.stages));
    std::vector<Moment> backward(plan_.programs.size());  // the message that the last one sends
    for (size_t r = 0; r < plan_.programs.size(); ++r) {
      const Program& program = plan_.programs[r];
      for (size_t i = 0; i < program.size(); ++i) {
        const Time end = timeline_.ranks[r][i].end;
        if (HasBackward(program[i].op)) backward[r] = {end, moments_[r][i].number + 1};
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
      Moment reduced = weighed[static_cast<size_t>(s)];
      const bool reduce = NeedsReduce(plan_, copies.size());
      // After what any holder begins at that time: one that waits for the others could do its own
      // work meanwhile, if others begin theirs before they come.
      if (reduce) reduced.number = std::numeric_limits<int64_t>::max();
      for (const int holder : copies) {
        std::vector<Insertion>& inbox = inbox_[static_cast<size_t>(holder)];
        if (reduce) inbox.push_back({reduced, Op::REDUCE, s, -1, -1});
        Moment step = {reduced.time + (reduce ? cost.reduce : 0), reduced.number};
        // A step that takes time must not keep other ranks waiting for this one's gradients.
        if (cost.step > 0) step = std::max(step, backward[static_cast<size_t>(holder)]);
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
    Program& merged = plan_.programs[rank] = {};
    merged.reserve(program.size() + sends_[rank] + inbox.size());
    auto next = inbox.begin();
    for (size_t i = 0; i < program.size(); ++i) {
      for (; next != inbox.end() && next->moment < moments[i]; ++next) {
        merged.push_back(next->instruction());
      }
      merged.push_back(program[i]);
      const Moment behind = {spans[i].end, moments[i].number + 1};
      // Whatever else arrives while the instruction runs comes before its own messages.
      bool arrived = false;
      ForEachMessage(r, program[i], [&](const Sent& sent) {
        for (; !arrived && next != inbox.end() && next->moment < behind; ++next) {
          merged.push_back(next->instruction());
        }
        arrived = true;
        merged.push_back(sent.send());
      });
    }
    for (; next != inbox.end(); ++next) merged.push_back(next->instruction());
  }

  Plan plan_;
  const CostModel& costs_;
  Timeline timeline_;
  std::vector<std::vector<Moment>> moments_;
  const Owners owner_;
  std::vector<std::vector<Insertion>> inbox_;
  std::vector<size_t> sends_;  // by rank
};

}  // namespace

std::vector<std::vector<Moment>> GlobalOrder(const Plan& plan, const Timeline& timeline) {
  CF_ASSERT(plan.level == Level::kCompute);
  return OrderWalk(plan, timeline).Run();
}

Plan InsertCommunication(Plan plan, const CostModel& costs) {
  CF_ASSERT(plan.level == Level::kCompute);
  return Inserter(std::move(plan), costs).Run();
}

}  // namespace contraflow
