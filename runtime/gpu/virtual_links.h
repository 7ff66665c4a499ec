#pragma once

#include <map>
#include <span>
#include <vector>

#include "compiler/plan/plan.h"
#include "kernels/gpu/exchange.h"
#include "runtime/gpu/gpu.h"
#include "runtime/gpu/links.h"
#include "runtime/gpu/sm_budget.h"

namespace contraflow {

/// Joins devices that share one GPU, or at least its address space: messages are copies out of the
/// sender's memory into the receiver's, exchanges and sums read the memory of all that take part.
/// The kernels take as many CTAs as the budget says, which bounds what a link carries.
class VirtualLinks : public GpuLinks {
 public:
  /// For participants on these streams, all devices of the plan among them. Throws Error if more of
  /// them meet than a kernel can reach (gpu::kMaxPeers).
  VirtualLinks(const Plan& plan, const SmBudget& budget, Gpu& gpu,
               std::span<const gpu::Stream> streams);

  void Transfer(std::span<const Participant> ends) override;
  void Exchange(std::span<const Participant> members) override;
  void Sum(std::span<const Participant> holders) override;

 private:
  void Join(std::span<const Participant> participants);
  void SumOver(std::span<const Participant> holders, int member);
  int ExpertCtas(gpu::Stream stream) const;

  const SmBudget budget_;
  Gpu& gpu_;
  std::map<void*, GpuEvent*> events_;  // by the handle of a stream
  std::vector<std::span<float>> spans_;
  std::vector<ExchangePart> parts_;
};

}  // namespace contraflow
