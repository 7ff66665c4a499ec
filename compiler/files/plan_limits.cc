#include "compiler/files/plan_limits.h"

#include <type_traits>

#include "compiler/plan/error.h"

namespace contraflow {

PlanLimits::PlanLimits(const Plan& plan, const std::string& place) : place_(place), plan_(plan) {
  const bool costs = plan.costs && plan.costs->moe;
  layers_ = plan.layers > 0 ? plan.layers : costs ? plan.costs->moe->layers_per_stage : kMaxLayers;
  // Of each chunk: F, R, B, W and four messages, or at the levels below fourteen components a layer
  // instead; of each stage: REDUCE and STEP.
  const bool coarse = plan.level == Level::kCompute || plan.level == Level::kComm;
  const int64_t per_chunk = 8 + (coarse ? 0 : int64_t{14} * layers_);
  longest_ = int64_t{plan.stages} * (plan.microbatches * per_chunk + 2);
}

void PlanLimits::Check(const Program& program, size_t row, size_t slots) {
  path_ = ": /programs/" + std::to_string(row);
  index_ = -1;
  if (static_cast<int64_t>(program.size()) > longest_) {
    Fail("has " + std::to_string(program.size()) + " instructions, more than " +
         std::to_string(longest_) + ", all there can be for " + std::to_string(plan_.stages) +
         " stages and " + std::to_string(plan_.microbatches) + " micro-batches");
  }
  slots_ = plan_.level == Level::kBuffer ? static_cast<int64_t>(slots) : longest_;
  for (const Instruction& instruction : program) {
    ++index_;
    Check(instruction);
  }
}

void PlanLimits::Check(const std::vector<Slot>& slots, size_t row, const Program& program) {
  path_ = ": /slots/" + std::to_string(row);
  index_ = -1;
  if (slots.size() > kMaxMade * program.size()) {
    Fail("has " + std::to_string(slots.size()) + " slots, more than " +
         std::to_string(kMaxMade * program.size()) + ", all that " +
         std::to_string(program.size()) + " instructions can make");
  }
  for (const Slot& slot : slots) {
    ++index_;
    Check(slot, static_cast<int64_t>(program.size()));
  }
}

void PlanLimits::Fail(const std::string& what) const {
  throw Error(place_ + path_ + (index_ < 0 ? "" : "/" + std::to_string(index_)) + ": " + what);
}

/// `size` values from 0; -1 stands for a field that it does not have.
template <typename Entry>
void PlanLimits::Check(const Entry& entry, const char* noun, int64_t value, int64_t size) const {
  if (value < size) return;
  const bool slot = std::is_same_v<Entry, Slot>;
  Fail((slot ? "slot \"" : "instruction \"") + ToString(entry) + "\": " + noun +
       (size > 0 ? " must be in 0.." + std::to_string(size - 1) + ", is " + std::to_string(value)
                 : " must not be given, there are none"));
}

void PlanLimits::Check(const Instruction& i) const {
  Check(i, "the stage", i.stage, plan_.stages);
  Check(i, "the micro-batch", i.microbatch, plan_.microbatches);
  Check(i, "the backward stage", i.back_stage, plan_.stages);
  Check(i, "the backward micro-batch", i.back_microbatch, plan_.microbatches);
  Check(i, "the peer", i.peer, plan_.ranks);
  Check(i, "the layer", i.layer, layers_);
  Check(i, "the slot", i.slot, slots_);
  Check(i, "the group", i.group, longest_ * plan_.ranks);
  if (i.after_count == 0) return;
  // Ascending, so the last one decides.
  const int last = i.after[static_cast<size_t>(i.after_count - 1)];
  if (last >= index_) {
    Fail("instruction \"" + ToString(i) +
         "\": \"after\" must name earlier instructions of the "
         "same program, " +
         std::to_string(last) + " is not before " + std::to_string(index_));
  }
}

void PlanLimits::Check(const Slot& slot, int64_t instructions) const {
  Check(slot, "the stage", slot.stage, plan_.stages);
  Check(slot, "the layer", slot.layer, plan_.layers);
  Check(slot, "the micro-batch", slot.microbatch, plan_.microbatches);
  Check(slot, "the first use", slot.first, instructions);
  Check(slot, "the last use", slot.last, instructions);
  Check(slot, "the offset", slot.offset, kMaxArena + 1);
  Check(slot, "the bytes", slot.bytes, kMaxArena + 1);
}

}  // namespace contraflow
