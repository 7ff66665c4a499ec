#include "compiler/plan/lanes.h"

#include <algorithm>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/plan/grid.h"
#include "compiler/plan/plan.h"

namespace contraflow {
namespace {

/// Gives programs their lanes and events, one rank after the other.
class LaneWriter {
 public:
  explicit LaneWriter(const Plan& plan)
      : stages_(static_cast<size_t>(plan.stages)),
        forward_(plan.stages, plan.microbatches, -1),
        backward_(forward_),
        input_(forward_),
        gradient_(forward_) {
    if (OffloadedCells(plan).any()) reload_ = forward_;
  }

  void Write(Program* program) {
    program_ = program;
    // Chunks are on one rank each, so their places need not be forgotten.
    weight_.assign(stages_, -1);
    reduce_.assign(stages_, -1);
    compute_ = last_offload_ = -1;
    for (at_ = 0; at_ < static_cast<int>(program->size()); ++at_) Write(&(*program)[Index(at_)]);
  }

 private:
  static size_t Index(int i) { return static_cast<size_t>(i); }

  void Write(Instruction* i) {
    i->lane = LaneOf(i->op);
    switch (WorkOf(i->op)) {
      case Work::kCompute:
        Compute(i);
        break;
      case Work::kSend:
        After((i->op == Op::SEND_F ? forward_ : backward_)(i->stage, i->microbatch), i);
        break;
      case Work::kRecv:
        (i->op == Op::RECV_F ? input_ : gradient_)(i->stage, i->microbatch) = at_;
        break;
      case Work::kReduce:
        After(weight_[Index(i->stage)], i);
        reduce_[Index(i->stage)] = at_;
        break;
      case Work::kStep:
        After(reduce_[Index(i->stage)], i);
        break;
      case Work::kOffload:
        After(forward_(i->stage, i->microbatch), i);
        last_offload_ = at_;
        break;
      case Work::kReload:
        // It takes memory, so it waits for its turn on the compute lane.
        After(compute_, i);
        After(last_offload_, i);
        reload_(i->stage, i->microbatch) = at_;
        break;
      case Work::kComponent:
      case Work::kAllToAll:
        CF_ASSERT(false && "stages are opaque here");
    }
  }

  void Compute(Instruction* i) {
    if (HasForward(i->op) || i->op == Op::R) After(last_offload_, i);
    if (HasForward(i->op)) {
      After(input_(i->stage, i->microbatch), i);
      forward_(i->stage, i->microbatch) = at_;
    }
    if (HasBackward(i->op)) {
      const int stage = BackStage(*i), m = BackMicrobatch(*i);
      After(gradient_(stage, m), i);
      if (!reload_.empty()) After(reload_(stage, m), i);
      backward_(stage, m) = at_;
    }
    if (HasWeight(i->op)) weight_[Index(BackStage(*i))] = at_;
    compute_ = at_;
  }

  /// The lane of the instruction already orders those before it on that lane.
  void After(int index, Instruction* i) {
    if (index < 0 || (*program_)[Index(index)].lane == i->lane) return;
    AddEvent(index, i);
  }

  const size_t stages_;
  Program* program_ = nullptr;
  int at_ = 0;
  // Positions by stage and micro-batch: of the instructions that made its output and its input's
  // gradient, RECV_F and RECV_B; by stage: its last weight gradient so far, and REDUCE.
  Grid<int> forward_, backward_, input_, gradient_;
  Grid<int> reload_;                      // empty where nothing is offloaded
  int compute_ = -1, last_offload_ = -1;  // so far
  std::vector<int> weight_, reduce_;
};

}  // namespace

void AddEvent(int32_t index, Instruction* i) {
  const auto end = i->after.begin() + i->after_count;
  const auto place = std::lower_bound(i->after.begin(), end, index);
  if (place != end && *place == index) return;
  CF_ASSERT(i->after_count < kMaxAfter);
  std::move_backward(place, end, end + 1);
  *place = index;
  ++i->after_count;
}

void AddLanes(Plan* plan) {
  CF_ASSERT(plan->level == Level::kComm && plan->layers == 0);
  LaneWriter writer(*plan);
  for (Program& program : plan->programs) writer.Write(&program);
}

}  // namespace contraflow
