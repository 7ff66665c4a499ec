#pragma once

#include <cstdint>
#include <vector>

#include "compiler/plan/instruction.h"

namespace contraflow {

/// Sizes of an exchange inside an expert group.
struct ExchangeShape {
  int members, local_experts, width;
  int capacity;  ///< 0: none
  int experts() const { return members * local_experts; }
};

/// One member's rows on the host: counts and rows as in runtime/views.h.
struct HostMember {
  std::vector<int32_t> sent;
  std::vector<float> tokens;  ///< by expert, then token
  std::vector<int32_t> first, received;
  std::vector<float> experts;  ///< by expert, then member, then token
};

/// The operation of the host's runtime, DISPATCH_F, COMBINE_F, COMBINE_B or DISPATCH_B, in a thread
/// for each member. DISPATCH_F makes `first` and `received` and gives `experts` the size for them;
/// every other needs them.
void ExchangeOnHost(const ExchangeShape& shape, Op op, std::vector<HostMember>* members);

}  // namespace contraflow
