#include "runtime/nccl/nccl_sum.h"

#include <algorithm>

#include "compiler/plan/error.h"
#include "kernels/gpu/exchange.h"

namespace contraflow {
namespace {

/// Slices begin at multiples of so many elements, for loads of 16 bytes.
constexpr size_t kWidth = 4;

/// Where slice `place` of `count` begins.
size_t BeginOf(size_t elements, size_t count, size_t place) {
  const size_t slice = ((elements + count - 1) / count + kWidth - 1) / kWidth * kWidth;
  return std::min(slice * place, elements);
}

std::span<float> Slice(std::span<float> values, size_t count, size_t place) {
  const size_t begin = BeginOf(values.size(), count, place);
  return values.subspan(begin, BeginOf(values.size(), count, place + 1) - begin);
}

}  // namespace

NcclSum::NcclSum(const Plan& plan, const RankOrder& order, int process, NcclComms& comms)
    : plan_(plan),
      order_(order),
      process_(process),
      holders_(HoldersOfStage(plan)),
      comms_(comms) {}

void NcclSum::Reserve(Gpu& gpu, size_t elements) {
  round_ = std::min(elements, kRound);
  // The slices of all others; rounded up, theirs may be a little more than the round has.
  const size_t most = static_cast<size_t>(order_.processes()) * kWidth + round_;
  work_ = reinterpret_cast<float*>(gpu.Allocate(most * sizeof(float)));
}

const NcclSum::Parts& NcclSum::PartsOf(int stage, Transport::Over over) {
  const auto [at, missing] = parts_.try_emplace({stage, over});
  Parts& parts = at->second;
  if (!missing) return parts;
  const Device self = order_.DeviceOf(process_);
  const bool same = over == Transport::Over::kSameMember;
  for (int replica = 0; replica < plan_.data_parallel; ++replica) {
    for (int member = 0; member < plan_.expert_parallel; ++member) {
      if (same && member != self.member) continue;
      for (const int holder : holders_[static_cast<size_t>(stage)]) {
        const int process = order_.ProcessOf({replica, member, holder});
        if (process == process_) parts.place = parts.processes.size();
        parts.processes.push_back(process);
      }
    }
  }
  CF_ASSERT(parts.processes[parts.place] == process_);
  return parts;
}

void NcclSum::Connect(int stage, Transport::Over over, gpu::Stream stream) {
  const Parts& parts = PartsOf(stage, over);
  CF_ASSERT(round_ >= 1);
  NcclComm* const comm = comms_[NcclComms::Use::kSums];
  comms_.ExchangeInGroups(parts.processes.size(), parts.place, 1, [&](size_t to, size_t from) {
    comms_.nccl().Send(comm, work_, sizeof(float), parts.processes[to], stream);
    // What comes is for nobody: all may write it to the same place.
    comms_.nccl().Recv(comm, work_ + kWidth, sizeof(float), parts.processes[from], stream);
  });
}

void NcclSum::Run(int stage, Transport::Over over, std::span<float> values, gpu::Stream stream) {
  const Parts& parts = PartsOf(stage, over);
  if (parts.processes.size() < 2) return;
  while (!values.empty()) {
    const size_t size = std::min(values.size(), round_);
    CF_ASSERT(size > 0);
    Round(parts, values.first(size), stream);
    values = values.subspan(size);
  }
}

void NcclSum::Round(const Parts& parts, std::span<float> values, gpu::Stream stream) {
  const size_t count = parts.processes.size();
  const std::span<float> own = Slice(values, count, parts.place);
  const size_t stride = (own.size() + kWidth - 1) / kWidth * kWidth;
  Nccl& nccl = comms_.nccl();
  NcclComm* const comm = comms_[NcclComms::Use::kSums];
  // Nothing is sent where slices are empty: both ends know.
  comms_.ExchangeInGroups(count, parts.place, 1, [&](size_t to, size_t from) {
    const std::span<float> theirs = Slice(values, count, to);
    if (!theirs.empty()) {
      nccl.Send(comm, theirs.data(), theirs.size_bytes(), parts.processes[to], stream);
    }
    if (!own.empty()) {
      const size_t other = from < parts.place ? from : from - 1;
      nccl.Recv(comm, work_ + other * stride, own.size_bytes(), parts.processes[from], stream);
    }
  });
  gpu::AddSlices(
      stream, {own.data(), work_, stride, static_cast<int>(count), static_cast<int>(parts.place)},
      own.size(), comms_.CtasOf(NcclComms::Use::kSums));
  comms_.ExchangeInGroups(count, parts.place, 1, [&](size_t to, size_t from) {
    const std::span<float> theirs = Slice(values, count, from);
    if (!own.empty()) {
      nccl.Send(comm, own.data(), own.size_bytes(), parts.processes[to], stream);
    }
    if (!theirs.empty()) {
      nccl.Recv(comm, theirs.data(), theirs.size_bytes(), parts.processes[from], stream);
    }
  });
}

}  // namespace contraflow
