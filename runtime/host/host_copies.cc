// Bytes of the host are given to the cells in the order of the program: an OFFLOAD may take those
// of a cell whose RELOAD stands before it, once that has ended. Every copy waits only for copies
// that stand before it and have been started, so they cannot wait for each other in a circle.

#include "runtime/host/host_copies.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/core/quiet_thread.h"

namespace contraflow {
namespace {

size_t Aligned(size_t bytes) {
  constexpr auto kAlignment = static_cast<size_t>(kSlotAlignment);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

HostCopies::HostCopies(const Plan& plan, int rank, const ValuePlaces& places, HostArenas* arenas)
    : arenas_(*arenas) {
  std::map<std::pair<int, int>, size_t> offset_of;                // by stage and micro-batch
  std::map<size_t, std::vector<std::pair<size_t, size_t>>> free;  // by bytes: offset, RELOADs
  size_t end = 0;
  for (const Instruction& i : plan.program(rank)) {
    if (!IsHostCopy(i.op)) continue;
    Copy copy;
    copy.uses = &places.Of(i);
    const size_t bytes = BytesOf(*copy.uses);
    if (i.op == Op::OFFLOAD) {
      auto& blocks = free[bytes];
      if (blocks.empty()) {
        blocks.push_back({end, 0});
        end += bytes;
      }
      std::tie(copy.offset, copy.reloads) = blocks.back();
      blocks.pop_back();
      offset_of[{i.stage, i.microbatch}] = copy.offset;
      offload_.copies.push_back(copy);
    } else {
      copy.offset = offset_of.at({i.stage, i.microbatch});
      reload_.copies.push_back(copy);
      free[bytes].push_back({copy.offset, reload_.copies.size()});
    }
    for (const ValuePlaces::Use& use : *copy.uses) {
      Copy& kept = LaneOf(i.op).copies.back();
      if (use.begins()) kept.offloads = std::max(kept.offloads, use.place->waits);
    }
  }
  if (offload_.copies.empty()) return;
  memory_.resize(end);
  try {
    for (const Op op : {Op::OFFLOAD, Op::RELOAD}) {
      LaneOf(op).thread = StartQuietly("copies of a rank", [this, op] { Serve(op); });
    }
  } catch (...) {
    Stop();
    throw;
  }
}

HostCopies::~HostCopies() { Stop(); }

void HostCopies::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  for (Lane* lane : {&offload_, &reload_}) {
    if (lane->thread.joinable()) lane->thread.join();
  }
}

/// Values begin at multiples of this, as they do in their arenas.
size_t HostCopies::BytesOf(const HostArenas::Uses& uses) const {
  size_t bytes = 0;
  for (const ValuePlaces::Use& use : uses) bytes += Aligned(arenas_.BytesOf(use));
  return bytes;
}

void HostCopies::BeginStep() {
  if (offload_.copies.empty()) return;
  const std::lock_guard lock(mutex_);
  for (Lane* lane : {&offload_, &reload_}) lane->started = lane->ended = 0;
}

void HostCopies::Start(const Instruction& copy, size_t offloads) {
  Lane& lane = LaneOf(copy.op);
  {
    const std::lock_guard lock(mutex_);
    CF_ASSERT(lane.started < lane.copies.size());
    Copy& next = lane.copies[lane.started++];
    next.offloads = std::max(next.offloads, offloads);
  }
  changed_.notify_all();
}

void HostCopies::Await(Op op, size_t count) {
  const Lane& lane = LaneOf(op);
  std::unique_lock lock(mutex_);
  CF_ASSERT(count <= lane.started);
  changed_.wait(lock, [&] { return lane.ended >= count; });
}

CopyTimes HostCopies::TimesOf(Op op, size_t number) const {
  const std::lock_guard lock(mutex_);
  return (op == Op::OFFLOAD ? offload_ : reload_).copies[number].times;
}

void HostCopies::Serve(Op op) {
  Lane& lane = LaneOf(op);
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto ready = [&] {
      if (lane.ended >= lane.started) return false;
      const Copy& next = lane.copies[lane.ended];
      return offload_.ended >= next.offloads && reload_.ended >= next.reloads;
    };
    changed_.wait(lock, [&] { return stopped_ || ready(); });
    if (stopped_) return;
    Copy& copy = lane.copies[lane.ended];
    lock.unlock();
    const CopyTimes times = Run(op, copy);
    lock.lock();
    copy.times = times;
    ++lane.ended;
    changed_.notify_all();
  }
}

CopyTimes HostCopies::Run(Op op, const Copy& copy) {
  const Clock::time_point start = Clock::now();
  std::byte* at = memory_.data() + copy.offset;
  if (op == Op::RELOAD) arenas_.Enter(*copy.uses);
  for (const ValuePlaces::Use& use : *copy.uses) {
    std::byte* const value = arenas_.At(use);
    const size_t bytes = arenas_.BytesOf(use);
    op == Op::OFFLOAD ? std::memcpy(at, value, bytes) : std::memcpy(value, at, bytes);
    at += Aligned(bytes);
  }
  if (op == Op::OFFLOAD) arenas_.Leave(*copy.uses);
  return {start, Clock::now()};
}

}  // namespace contraflow
