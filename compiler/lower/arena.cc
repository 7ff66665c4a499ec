#include "compiler/lower/arena.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <tuple>

#include "compiler/plan/error.h"
#include "compiler/plan/value.h"

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
  auto before_at = gaps_.end();  // the gap before, where it costs nothing
  for (auto at = gaps_.begin(); at != gaps_.end(); ++at) {
    const int cost = price(at->second.uses);
    // A gap that costs nothing now will cost nothing to all that follows on this lane. Joined, such
    // gaps need not be looked at one by one again.
    if (cost == 0 && before_at != gaps_.end() && Join(&*before_at, *at)) {
      gaps_.erase(at);
      at = before_at;
      run_end = at->second.end;
      continue;
    }
    if (at->first != run_end || cost < 0) {
      close();
      if (best >= 0 && least == std::tuple(int64_t{0}, 0)) break;
      run = cost < 0 ? -1 : at->first;
      events = 0;
    }
    if (cost >= 0) events += cost;
    run_end = cost < 0 ? -1 : at->second.end;
    before_at = cost == 0 ? at : gaps_.end();
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

bool ArenaPacker::Join(std::pair<const int64_t, Gap>* gap,
                       const std::pair<const int64_t, Gap>& next) {
  // Messages are on lanes of their own, so the later one need not say all. Copies to the host are
  // on one lane.
  constexpr size_t kMessages = 2;
  Gap& first = gap->second;
  const Gap& second = next.second;
  const bool both = first.uses[kMessages] >= 0 && second.uses[kMessages] >= 0;
  if (first.end != next.first) return false;
  if (both && first.uses[kMessages] != second.uses[kMessages]) return false;
  for (size_t kind = 0; kind < first.uses.size(); ++kind) {
    first.uses[kind] = std::max(first.uses[kind], second.uses[kind]);
  }
  first.end = second.end;
  return true;
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

LaneOrder::LaneOrder(const Program& program) : program_(program) {
  std::map<std::pair<int32_t, bool>, int32_t> edges;  // by peer (the host: -1) and direction
  constexpr int32_t kFixed = 3;
  lanes_.reserve(program.size());
  for (const Instruction& i : program) {
    const Work work = WorkOf(i.op);
    int32_t lane = 0;
    if (work == Work::kSend || work == Work::kRecv || IsHostCopy(i.op)) {
      const bool out = work == Work::kSend || work == Work::kOffload;
      const auto next = kFixed + static_cast<int32_t>(edges.size());
      lane = edges.try_emplace({i.peer, out}, next).first->second;
    } else if (work == Work::kAllToAll) {
      lane = 1;
    } else if (work == Work::kReduce) {
      lane = 2;
    }
    lanes_.push_back(lane);
  }
  const size_t count = static_cast<size_t>(kFixed) + edges.size();
  latest_.assign(count, -1);
  clock_.assign(count, -1);
  clocks_.assign(program.size() * count, -1);
}

void LaneOrder::Begin(int32_t index) {
  at_ = static_cast<size_t>(index);
  std::fill(clock_.begin(), clock_.end(), -1);
  const int32_t before = latest_[static_cast<size_t>(lanes_[at_])];
  if (before >= 0) Join(before);
  const Instruction& i = program_[at_];
  for (int k = 0; k < i.after_count; ++k) Join(i.after[static_cast<size_t>(k)]);
}

void LaneOrder::Wait(int32_t earlier) { Join(earlier); }

void LaneOrder::Join(int32_t earlier) {
  CF_ASSERT(earlier >= 0 && static_cast<size_t>(earlier) < at_);
  const auto from =
      clocks_.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(earlier) * clock_.size());
  for (size_t lane = 0; lane < clock_.size(); ++lane) {
    clock_[lane] = std::max(clock_[lane], from[static_cast<std::ptrdiff_t>(lane)]);
  }
  int32_t& own = clock_[static_cast<size_t>(lanes_[static_cast<size_t>(earlier)])];
  own = std::max(own, earlier);
}

void LaneOrder::End() {
  std::copy(clock_.begin(), clock_.end(),
            clocks_.begin() + static_cast<std::ptrdiff_t>(at_ * clock_.size()));
  latest_[static_cast<size_t>(lanes_[at_])] = static_cast<int32_t>(at_);
}

}  // namespace contraflow
