// Memory x time. Between the start of its F and the end of its B a chunk holds an activation, for
// no less than f + lag + b, and then a stash until the end of its rest. A rank never holds more
// than the limit, so over the step
//
//     activation * sum(f + lag + b) + stash * sum(rest) + ramps <= limit * time.
//
// Slots: n = limit / activation chunks, at most, are between F and B at once. The rank holds no
// activation before its head. The forwards start at least the shortest f apart, so the k-th slot is
// empty for (k - 1) f after that; likewise backwards end at least the shortest b apart, and after
// the last of them there is the shortest tail. With the ramps n (n - 1) / 2 times (f + b)
//
//     makespan >= head + (sum(f + lag + b) + ramps) / n + tail.
//
// No slot's first chunk starts after its last one ends, so the ramps do not meet, and with at least
// n chunks every slot has one; with fewer than n chunks n is their number.
//
// Bytes: the same with the limit for n, which counts the stashes too. There the ramp at the end is
// known only if the stash is the whole activation: chunks are released a rest apart. In a pair
// shorter than its parts the rest may overlap other work: it counts as 0. Ranks that recompute are
// left out: between F and R they hold less.

#include <algorithm>
#include <cmath>

#include "compiler/bound/work.h"

namespace contraflow {
namespace {

/// Sums over the chunks of a rank. They are doubles, as products of bytes and times exceed 64 bits;
/// an upper bound of the rounding is subtracted at the end.
struct RankArea {
  double held = 0, rests = 0;
  Time head = kNever, tail = kNever, f = kNever, b = kNever, rest = kNever;
  int64_t count = 0;
};

/// `count` micro-batches that are like the k-th of the route.
void Add(const BoundInput& input, const RouteWork& route, size_t k, size_t count,
         std::vector<RankArea>* ranks) {
  const std::vector<ChunkTimes> times = TimesOf(input, route, k);
  const auto all = static_cast<double>(count);
  for (size_t s = 0; s < route.stages(); ++s) {
    const CellWork& chunk = route.At(s, k);
    const auto& [head, lag, tail] = times[s];
    const Time rest = input.pairs ? 0 : chunk.weight;
    RankArea& rank = (*ranks)[static_cast<size_t>(route.ranks[s])];
    rank.held += all * static_cast<double>(chunk.f + lag + chunk.b);
    rank.rests += all * static_cast<double>(rest);
    rank.head = std::min(rank.head, head);
    rank.tail = std::min(rank.tail, std::max(tail, input.RestOnPath(route, s, chunk)));
    rank.f = std::min(rank.f, chunk.f);
    rank.b = std::min(rank.b, chunk.b);
    rank.rest = std::min(rank.rest, rest);
    rank.count += static_cast<int64_t>(count);
  }
}

/// Smallest whole number of ticks that covers `ticks` and the rounding of some operations in each
/// of `count` chunks.
Time Ceiling(double ticks, int64_t count) {
  return static_cast<Time>(std::ceil(ticks * (1 - 1e-15 * static_cast<double>(count + 16))));
}

Bound BoundOfSlots(const RankArea& rank, int64_t slots) {
  const auto n = static_cast<double>(std::min(slots, rank.count));
  const double ramps = n * (n - 1) / 2 * static_cast<double>(rank.f + rank.b);
  return {
      .head = rank.head, .work = Ceiling((rank.held + ramps) / n, rank.count), .tail = rank.tail};
}

Bound BoundOfBytes(const RankArea& rank, const MemoryLimit& memory) {
  const bool whole = memory.stash() == memory.activation();
  const auto n = static_cast<double>(std::min(memory.slots(), rank.count));
  const auto activation = static_cast<double>(memory.activation());
  const Time ramp = rank.f + (whole ? rank.rest : 0);
  const double ramps = n * (n - 1) / 2 * static_cast<double>(ramp) * activation;
  const double area =
      activation * rank.held + static_cast<double>(memory.stash()) * rank.rests + ramps;
  // With fewer chunks than slots even all of them at once hold no more than n activations.
  const bool full = !whole && memory.slots() <= rank.count;
  const double limit = full ? static_cast<double>(*memory.amount()) : n * activation;
  return {.head = rank.head, .work = Ceiling(area / limit, rank.count)};
}

}  // namespace

void RaiseByArea(const BoundInput& input, Bound* best) {
  if (!input.memory) return;
  std::vector<RankArea> ranks(static_cast<size_t>(input.ranks));
  for (const RouteWork& route : input.routes) {
    const size_t kinds = route.alike ? 1 : route.count;
    for (size_t k = 0; k < kinds; ++k) Add(input, route, k, route.count / kinds, &ranks);
  }
  for (int r = 0; r < input.ranks; ++r) {
    const RankArea& rank = ranks[static_cast<size_t>(r)];
    if (rank.count == 0 || input.recomputes[static_cast<size_t>(r)]) continue;
    const MemoryLimit& memory = input.memory_of[static_cast<size_t>(r)];
    for (Bound bound : {BoundOfSlots(rank, memory.slots()), BoundOfBytes(rank, memory)}) {
      bound.kind = BoundKind::kMemoryArea;
      bound.rank = r;
      bound.value = bound.head + bound.work + bound.tail;
      KeepLarger(best, bound);
    }
  }
}

}  // namespace contraflow
