#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gpu/parcels.h"
#include "runtime/exec/gpu.h"
#include "runtime/exec/links.h"
#include "runtime/nccl/comms.h"
#include "runtime/nccl/puts.h"

namespace contraflow {

/// Transport::Sum between GPUs. Every part gets one slice of the elements from all the others, adds
/// it up in the order of the parts, and sends the sum back: each element travels twice, and is
/// added in one order, at one place. In rounds, so that the memory for slices is bounded.
class NcclSum {
 public:
  /// Most elements of a round, and what its slices take in memory, in floats.
  static constexpr size_t kRound = size_t{8} << 20;

  /// All arguments must outlive it.
  NcclSum(const Plan& plan, const RankOrder& order, int process, NcclComms& comms);

  /// Allocates memory for sums of up to this many elements.
  void Reserve(Gpu& gpu, size_t elements);

  /// Makes the connections of the sums over a stage by messages of a few bytes. All who take part
  /// call it.
  void Connect(int stage, Transport::Over over, gpu::Stream stream);
  /// Like Transport::Sum; this process holds the stage. Values are device memory.
  void Run(int stage, Transport::Over over, std::span<float> values, gpu::Stream stream);
  /// Like GpuLinks::Gather, among all processes.
  void Gather(double* values, size_t n, gpu::Stream stream);
  /// Whether there is anybody to add to.
  bool Needed(int stage, Transport::Over over) { return PartsOf(stage, over).processes.size() > 1; }

 private:
  /// Participants, in the order in which they are added.
  struct Parts {
    std::vector<int> processes;
    size_t place = 0;  // of this one
  };

  const Parts& PartsOf(int stage, Transport::Over over);
  void Round(const Parts& parts, std::span<float> values, gpu::Stream stream);

  const Plan& plan_;
  const RankOrder& order_;
  const int process_;
  const std::vector<std::vector<int>> holders_;
  NcclComms& comms_;
  std::map<std::pair<int, Transport::Over>, Parts> parts_;  // by stage
  float* work_ = nullptr;
  size_t round_ = 0;  // elements of a round
};

/// Shape for which the exchanges of an expert group are planned, on each of its devices.
struct NcclExchange {
  int local_experts = 0, width = 0;
  int capacity = 0;     ///< rows that a member sends to each expert; 0: as many as there are
  int expert_rows = 0;  ///< most that come to the experts of a member
};

/// The links of one device of a job, with a GPU to itself, over NCCL. Every operation meets its
/// counterpart in the order in which the plan has them, whatever NCCL buffers. Each call has one
/// participant, this process's.
///
/// NCCL wants the sizes of messages before the device knows how many rows there are. With a
/// capacity that is their number. Without one the members of a group send each other parcels
/// (kernels/gpu/parcels.h) and the counts of what is in them: no token is dropped.
class NcclLinks : public GpuLinks {
 public:
  /// All arguments but `exchange` must outlive it; a plan without expert groups needs none.
  NcclLinks(const Plan& plan, const NcclExchange& exchange, const RankOrder& order, int process,
            const SmBudget& budget, Nccl& nccl, Gpu& gpu, NcclComms::Options options = {});

  /// Messages of the pipeline become puts (NcclPuts). Before Connect, in all processes, which know
  /// of each other by `share`. Throws Error if this NCCL has none.
  void PutMessages(ShareBytes share);

  /// Joins the other processes, all of which call it with the same id, and connects to all that
  /// this device will talk to, in one order everywhere. Throws Error if that fails or takes longer
  /// than the timeout, Aborted after Abort.
  void Connect(const std::string& id, GpuBackend& backend);

  void Transfer(std::span<const Participant> ends) override;
  void Exchange(std::span<const Participant> members) override;
  void Sum(std::span<const Participant> holders) override;
  void Gather(double* values, size_t n, gpu::Stream stream) override {
    sum_.Gather(values, n, stream);
  }
  void BeginGroup() override { puts_ ? puts_->BeginGroup() : comms_.BeginGroup(); }
  void EndGroup() override { puts_ ? puts_->EndGroup() : comms_.EndGroup(); }
  void Poll() override { comms_.Poll(); }
  void Abort() override { comms_.Abort(); }
  void Close() override { comms_.Close(); }

 private:
  void ConnectEdges(std::byte* memory, gpu::Stream stream);
  void ConnectExperts(std::byte* memory, gpu::Stream stream);
  void AllocateParcels();
  void RegisterMemory(const GpuBackend& backend);
  void ExchangeAlone(const Participant& self, const ExchangePart& part);
  void ExchangeFixed(const Participant& self, const ExchangePart& part);
  void ExchangeParcels(const Participant& self, const ExchangePart& part);

  const Plan& plan_;
  const NcclExchange exchange_;
  const RankOrder& order_;
  const int process_;
  const Device device_;
  const std::vector<Edge> edges_;
  Nccl& nccl_;
  Gpu& gpu_;
  NcclComms comms_;
  NcclSum sum_;
  std::optional<NcclPuts> puts_;
  ShareBytes share_;        // for them
  gpu::Parcels parcels_{};  // without a capacity
  std::span<std::byte> parcel_memory_;
  int32_t* begins_ = nullptr;  // [members x (local experts + 1)], as CountParcels reads them
};

}  // namespace contraflow
