#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "compiler/plan/instruction.h"
#include "runtime/core/transport.h"
#include "runtime/model/views.h"

namespace contraflow {

/// The exchanges of routed rows inside an expert group, from the device that has a token to the one
/// that owns its expert and back. One part goes each way between two members for every expert of
/// the receiver, so that rows arrive where they are needed, by expert, then member, then token, and
/// nothing is sorted or copied twice. Without a limit to the rows of an expert their counts go
/// first. Used by one thread.
class Exchange {
 public:
  /// The transport must outlive it.
  Exchange(const LayerShape& shape, Transport& transport);

  /// DISPATCH_F: dispatched to the owners' rows; sets `first` and `received`.
  void Dispatch(const Instruction& instruction, const LayerViews<float>& v);
  /// COMBINE_F: expert_out back to combined.
  void Combine(const Instruction& instruction, const LayerViews<float>& v);
  /// COMBINE_B: dcombined to the owners' drows.
  void CombineBackward(const Instruction& instruction, const LayerViews<float>& v);
  /// DISPATCH_B: dsorted back to ddispatched.
  void DispatchBackward(const Instruction& instruction, const LayerViews<float>& v);

 private:
  void Count(const Instruction& instruction, const LayerViews<float>& v);
  void ToExperts(const Instruction& instruction, const LayerViews<float>& v, float* tokens,
                 float* experts);
  void ToTokens(const Instruction& instruction, const LayerViews<float>& v, float* experts,
                float* tokens);
  void Swap(const Instruction& instruction);
  void FindParts(const LayerViews<float>& v, int local, float* tokens, float* experts);

  const LayerShape shape_;
  Transport& transport_;
  // By member: the rows that this device's tokens send to one expert there, and those that one
  // expert here has of that member's tokens.
  std::vector<std::span<float>> of_tokens_, of_experts_;
  std::vector<int32_t> counts_;  // of the rows sent, by expert
  std::vector<std::span<const std::byte>> send_;
  std::vector<std::span<std::byte>> receive_;
};

}  // namespace contraflow
