#include "compiler/arena.h"

#include <iterator>
#include <limits>
#include <tuple>

#include "compiler/error.h"
#include "compiler/value.h"

namespace contraflow {
namespace {

int64_t Aligned(int64_t bytes) {
  return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

}  // namespace

int64_t ArenaPacker::Take(int64_t bytes, const Price& price, std::vector<LastUses>* before) {
  CF_ASSERT(bytes > 0);
  const int64_t size = Aligned(bytes);
  // Runs of neighbouring gaps that can all be had; the last one may end where the arena ends.
  int64_t run = -1, run_end = -1, best = -1;
  int events = 0;
  auto least = std::tuple(std::numeric_limits<int64_t>::max(), 0);
  const auto close = [&] {
    if (run < 0 || run_end - run < size) return;
    const auto rank = std::tuple(run_end - run - size, events);
    if (best >= 0 && rank >= least) return;
    least = rank;
    best = run;
  };
  for (const auto& [begin, gap] : gaps_) {
    const int cost = price(gap.uses);
    if (begin != run_end || cost < 0) {
      close();
      run = cost < 0 ? -1 : begin;
      events = 0;
    }
    if (cost >= 0) events += cost;
    run_end = cost < 0 ? -1 : gap.end;
  }
  close();
  int64_t offset = best;
  if (offset < 0) {
    offset = run >= 0 && run_end == size_ ? run : size_;
    size_ = offset + size;
  }
  Cut(offset, offset + size, before);
  return offset;
}

void ArenaPacker::Cut(int64_t begin, int64_t end, std::vector<LastUses>* before) {
  auto at = gaps_.lower_bound(begin);
  while (at != gaps_.end() && at->first < end) {
    before->push_back(at->second.uses);
    const Gap gap = at->second;
    at = gaps_.erase(at);
    if (gap.end > end) {
      gaps_.emplace_hint(at, end, gap);
      break;
    }
  }
}

void ArenaPacker::GiveBack(int64_t offset, int64_t bytes, const LastUses& uses) {
  int64_t begin = offset, end = offset + Aligned(bytes);
  auto next = gaps_.lower_bound(begin);
  if (next != gaps_.end() && next->first == end && next->second.uses == uses) {
    end = next->second.end;
    next = gaps_.erase(next);
  }
  if (next != gaps_.begin()) {
    const auto last = std::prev(next);
    if (last->second.end == begin && last->second.uses == uses) {
      last->second.end = end;
      return;
    }
  }
  gaps_.emplace_hint(next, begin, Gap{end, uses});
}

}  // namespace contraflow
