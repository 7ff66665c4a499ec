#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/gpu/gpu.h"
#include "runtime/gpu/links.h"
#include "runtime/nccl/nccl_comms.h"
#include "runtime/nccl/nccl_sum.h"

namespace contraflow {

/// The links of one device of a job, with a GPU to itself, over NCCL. Every operation meets its
/// counterpart in the order in which the plan has them, whatever NCCL buffers. Each call has one
/// participant, this process's.
class NcclLinks : public GpuLinks {
 public:
  /// What is passed must outlive it. Throws Error, with the remedy, if the plan has exchanges
  /// whose sizes only the device knows: `capacity`, rows of a member and expert, is 0.
  NcclLinks(const Plan& plan, int capacity, const RankOrder& order, int process,
            const SmBudget& budget, Nccl& nccl, Gpu& gpu, NcclComms::Options options = {});

  /// Joins the other processes, all of which call it with the same id, and connects to all that
  /// this device will talk to, in one order everywhere. Throws Error if that fails or takes longer
  /// than the timeout, Aborted after Abort.
  void Connect(const std::string& id, GpuBackend& backend);
  /// The orderly end, after the last step and once the device is done; all processes.
  void Close() { comms_.Close(); }

  void Transfer(std::span<const Participant> ends) override;
  void Exchange(std::span<const Participant> members) override;
  void Sum(std::span<const Participant> holders) override;
  void BeginGroup() override { comms_.BeginGroup(); }
  void EndGroup() override { comms_.EndGroup(); }
  void Poll() override { comms_.Poll(); }
  void Abort() override { comms_.Abort(); }

 private:
  void ConnectEdges(std::byte* memory, gpu::Stream stream);
  void ConnectExperts(std::byte* memory, gpu::Stream stream);
  void ExchangeAlone(const Participant& self, const ExchangePart& part);

  const Plan& plan_;
  const Device device_;
  const std::vector<std::pair<int, int>> edges_;  // of a pipeline, from and to, ascending
  Nccl& nccl_;
  Gpu& gpu_;
  NcclComms comms_;
  NcclSum sum_;
};

}  // namespace contraflow
