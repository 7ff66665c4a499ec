#include "compiler/lower/lane_order.h"

#include <algorithm>
#include <map>

#include "compiler/plan/error.h"

namespace contraflow {

LaneOrder::LaneOrder(const Program& program) : program_(program) {
  std::map<std::pair<int32_t, bool>, int32_t> edges;  // by peer and direction
  constexpr int32_t kFixed = 3;
  lanes_.reserve(program.size());
  for (const Instruction& i : program) {
    const Work work = WorkOf(i.op);
    int32_t lane = 0;
    if (work == Work::kSend || work == Work::kRecv) {
      const auto next = kFixed + static_cast<int32_t>(edges.size());
      lane = edges.try_emplace({i.peer, work == Work::kSend}, next).first->second;
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
