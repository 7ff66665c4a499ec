#pragma once

#include <algorithm>
#include <cstdint>

#include "compiler/plan/instruction.h"
#include "compiler/plan/recompute_cost.h"

namespace contraflow {

/// One activation as a cell that is counted, not weighed; none while it waits for R.
inline constexpr CellBytes kOneActivation = {.activation = 1, .stash = 1};

/// Amount that an instruction takes when it begins, for the cell that it runs or brings back.
inline int64_t Taken(Op op, const CellBytes& own) {
  if (HasForward(op) || op == Op::RELOAD) return own.activation;
  return op == Op::R ? own.activation - own.input : 0;
}

/// Amount that it gives back when it ends. `own`: its forward, or the cell that leaves; `back`: its
/// backward; `again`: the forward will run again.
inline int64_t Given(Op op, const CellBytes& own, const CellBytes& back, bool again = false) {
  int64_t given = 0;
  if (again && HasForward(op)) given += own.activation - own.input;
  if (HasBackward(op)) given += back.activation - back.stash;
  if (HasWeight(op)) given += back.stash;
  if (op == Op::OFFLOAD) given += own.activation;
  return given;
}

/// Amount that a rank holds while the instructions of its program go by, in any unit. An
/// instruction that takes memory waits for all before it that give some back, so the peak holds for
/// any times.
class RankMemory {
 public:
  void Begin(Op op, const CellBytes& own) { Add(Taken(op, own)); }
  void End(Op op, const CellBytes& own, const CellBytes& back, bool again = false) {
    Add(-Given(op, own, back, again));
  }
  void Add(int64_t amount) {
    held_ += amount;
    peak_ = std::max(peak_, held_);
  }

  int64_t held() const { return held_; }
  int64_t peak() const { return peak_; }

 private:
  int64_t held_ = 0, peak_ = 0;
};

}  // namespace contraflow
