#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compiler/plan/plan.h"

namespace contraflow {

/// Most slots that one instruction makes: ATTN_F its layer's input, attention, scores, dispatched.
inline constexpr size_t kMaxMade = 4;
/// Largest offset and size of a slot: no memory is larger, and their sum cannot overflow.
inline constexpr int64_t kMaxArena = int64_t{1} << 60;

/// Holds what was read of a plan document against its head. Both must outlive this.
class PlanLimits {
 public:
  PlanLimits(const Plan& plan, const std::string& place);

  /// Throw Error "PLACE: PATH: what" for an entry out of range, and for more of them than there can
  /// be. The program of this row of the document, with so many slots (level buffer only).
  void Check(const Program& program, size_t row, size_t slots);
  void Check(const std::vector<Slot>& slots, size_t row, const Program& program);

 private:
  [[noreturn]] void Fail(const std::string& what) const;
  template <typename Entry>
  void Check(const Entry& entry, const char* noun, int64_t value, int64_t size) const;
  void Check(const Instruction& i) const;
  void Check(const Slot& slot, int64_t instructions) const;

  const std::string& place_;
  const Plan& plan_;
  std::string path_;
  int layers_ = 0;
  int64_t longest_ = 0;  ///< of the programs
  int64_t slots_ = 0;    ///< of the row that is checked
  int64_t index_ = -1;   ///< of the entry; -1: the row
};

}  // namespace contraflow
