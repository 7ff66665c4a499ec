// Times come from the simulation; the numbers that break ties come from a walk over the programs
// which takes an instruction only when all it needs has been taken. No sorting: each rank's moments
// ascend already, because its lane runs in order.

#include <vector>

#include "compiler/lower/passes.h"
#include "compiler/plan/error.h"

namespace contraflow {
namespace {

class Walk {
 public:
  Walk(const Plan& plan, const Timeline& timeline)
      : plan_(plan), timeline_(timeline), route_of_(RouteOfMicrobatch(plan)) {
    const size_t chunks = static_cast<size_t>(plan.stages) * static_cast<size_t>(plan.microbatches);
    f_done_.assign(chunks, false);
    b_done_.assign(chunks, false);
    waiting_.assign(plan.programs.size(), false);
    moments_.resize(plan.programs.size());
  }

  std::vector<std::vector<Moment>> Run() {
    for (int r = plan_.ranks - 1; r >= 0; --r) {
      const auto rank = static_cast<size_t>(r);
      moments_[rank].reserve(plan_.programs[rank].size());
      ready_.push_back(r);
    }
    while (!ready_.empty()) {
      const int r = ready_.back();
      ready_.pop_back();
      Advance(r);
    }
    for (size_t r = 0; r < moments_.size(); ++r) {
      CF_ASSERT(moments_[r].size() == plan_.programs[r].size());
    }
    return std::move(moments_);
  }

 private:
  size_t At(int stage, int m) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(plan_.microbatches) +
           static_cast<size_t>(m);
  }

  void Advance(int r) {
    const auto rank = static_cast<size_t>(r);
    const Program& program = plan_.programs[rank];
    std::vector<Moment>& moments = moments_[rank];
    while (moments.size() < program.size()) {
      const Instruction& i = program[moments.size()];
      const bool forward_ready =
          !HasForward(i.op) || i.stage == 0 || f_done_[At(i.stage - 1, i.microbatch)];
      const bool backward_ready = !HasBackward(i.op) || BackStage(i) + 1 == plan_.stages ||
                                  b_done_[At(BackStage(i) + 1, BackMicrobatch(i))];
      if (!forward_ready || !backward_ready) {
        waiting_[rank] = true;
        return;
      }
      moments.push_back({timeline_.ranks[rank][moments.size()].start, number_});
      number_ += 2;
      if (HasForward(i.op)) Done(&f_done_, i.stage, i.microbatch, i.stage + 1);
      if (HasBackward(i.op)) Done(&b_done_, BackStage(i), BackMicrobatch(i), BackStage(i) - 1);
    }
  }

  void Done(std::vector<bool>* done, int stage, int m, int next_stage) {
    (*done)[At(stage, m)] = true;
    if (next_stage < 0 || next_stage >= plan_.stages) return;
    const auto route = static_cast<size_t>(route_of_[static_cast<size_t>(m)]);
    const int consumer = plan_.routes[route].ranks[static_cast<size_t>(next_stage)];
    if (!waiting_[static_cast<size_t>(consumer)]) return;
    waiting_[static_cast<size_t>(consumer)] = false;
    ready_.push_back(consumer);
  }

  const Plan& plan_;
  const Timeline& timeline_;
  const std::vector<int> route_of_;
  std::vector<bool> f_done_, b_done_;  // by stage and micro-batch
  std::vector<bool> waiting_;          // ranks that could not go on
  std::vector<int> ready_;
  int64_t number_ = 0;
  std::vector<std::vector<Moment>> moments_;
};

}  // namespace

std::vector<std::vector<Moment>> GlobalOrder(const Plan& plan, const Timeline& timeline) {
  CF_ASSERT(plan.level == Level::kCompute);
  return Walk(plan, timeline).Run();
}

}  // namespace contraflow
