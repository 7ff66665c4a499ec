// Checks of lanes: each instruction on the lane of its operation, and every input on another lane
// awaited. The lanes of a rank run concurrently, each in program order; so an instruction begins
// after the one before it on its lane and after all in its `after`, and after whatever those were
// after. The clock of an instruction says for each lane how far that is.
//
// No plan that passed the proof of deadlock.cc can hang here. That proof runs each rank's program
// to its end one instruction at a time. All that lanes wait for stands earlier in the same program,
// or is the other side of the same message or reduction: the order in which the proof's run
// completed the instructions has every wait after what it waits for. Lanes that run ahead begin
// things earlier; they wait for nothing else.
//
// The same order holds for an expert group. Its members run one program, so their all-to-alls meet
// in program order on an in-order lane; a member waits at one for another member of the same rank
// that stands earlier in that same program, which the run of the proof completed before. Leaving
// out which member it is, a circle of waits of the group would be a circle of waits of one member.

#include <algorithm>

#include "compiler/verify/checks.h"

namespace contraflow::check {
namespace {

constexpr int32_t kFixedLanes = 3;
// A rank of any use has a few neighbours. The cost of a hostile one stays linear in its
// instructions: this many columns at most, and where there are millions of instructions fewer.
constexpr size_t kMaxColumns = 1024;
constexpr size_t kMaxEntries = size_t{1} << 26;
constexpr size_t kMinColumns = 16;

std::string LaneText(Lane lane) {
  return lane == Lane::kNone ? "no lane" : "lane=" + std::string(Name(lane));
}

void CheckLane(int rank, int32_t index, const Instruction& i, Findings* findings) {
  const Lane right = LaneOf(i.op);
  if (i.lane == right) return;
  findings->Add(
      Check::kLane, rank, index,
      ToString(i) + " has " + LaneText(i.lane) + "; its operation runs on " + LaneText(right));
}

/// Each entry of `after` is of an earlier instruction, once, ascending; and not of the group the
/// instruction itself is posted with.
void CheckAfter(const Program& program, int rank, int32_t index, Findings* findings) {
  const Instruction& i = program[static_cast<size_t>(index)];
  int32_t group_begin = index;
  while (i.group >= 0 && IsMessage(i.op) && group_begin > 0 &&
         program[static_cast<size_t>(group_begin) - 1].group == i.group) {
    --group_begin;
  }
  int32_t last = -1;
  for (int k = 0; k < i.after_count; ++k) {
    const int32_t on = i.after[static_cast<size_t>(k)];
    const auto add = [&](const std::string& what) {
      findings->Add(Check::kEvent, rank, index,
                    ToString(i) + " waits for " + std::to_string(on) + what);
    };
    if (on < 0 || on >= index) {
      add(", which does not stand before it; \"after\" has earlier instructions only");
    } else if (on <= last) {
      add(on == last ? " twice; drop one"
                     : " after " + std::to_string(last) + "; \"after\" must ascend");
    } else if (on >= group_begin) {
      add(" of its own group, which is posted with it; drop it from \"after\"");
    }
    last = std::max(last, on);
  }
}

}  // namespace

Clocks::Clocks(const Plan& plan) : plan_(plan), edges_(static_cast<size_t>(plan.ranks) * 2 + 2) {}

/// Numbers are given to edges that the rank uses.
int32_t Clocks::EdgeLane(size_t number, int rank) {
  Edge& edge = edges_[number];
  if (edge.rank != rank) edge = {rank, lane_count_++};
  return edge.lane;
}

int32_t Clocks::NumberOf(const Instruction& i, int rank) {
  switch (LaneOf(i.op)) {
    case Lane::kAllToAll:
      return 1;
    case Lane::kReduce:
      return 2;
    case Lane::kOffload:
    case Lane::kReload:
      return EdgeLane(static_cast<size_t>(plan_.ranks) * 2 + (i.op == Op::OFFLOAD ? 0 : 1), rank);
    case Lane::kSend:
    case Lane::kRecv:
      return EdgeLane(static_cast<size_t>(i.peer) * 2 + (IsSend(i.op) ? 0 : 1), rank);
    case Lane::kNone:
    case Lane::kCompute:
      break;
  }
  return 0;
}

void Clocks::Turn(int rank) {
  program_ = &plan_.program(rank);
  lane_count_ = kFixedLanes;
  lanes_.clear();
  for (const Instruction& i : *program_) lanes_.push_back(NumberOf(i, rank));
  const size_t size = std::max<size_t>(program_->size(), 1);
  columns_ = std::min(
      {static_cast<size_t>(lane_count_), kMaxColumns, std::max(kMaxEntries / size, kMinColumns)});
  clocks_.assign(program_->size() * columns_, -1);
  std::vector<int32_t> latest(static_cast<size_t>(lane_count_), -1);
  for (size_t at = 0; at < program_->size(); ++at) {
    const auto index = static_cast<int32_t>(at);
    const Instruction& i = (*program_)[at];
    int32_t& before = latest[static_cast<size_t>(lanes_[at])];
    if (before >= 0) Join(index, before);
    for (int k = 0; k < i.after_count; ++k) {
      const int32_t on = i.after[static_cast<size_t>(k)];
      if (on >= 0 && on < index) Join(index, on);
    }
    before = index;
  }
  FindWaiters();
}

void Clocks::FindWaiters() {
  waiters_.clear();
  if (columns_ == static_cast<size_t>(lane_count_)) return;
  waiters_.assign(program_->size(), -1);
  std::vector<int32_t> behind(static_cast<size_t>(lane_count_), -1);
  const auto earlier = [](int32_t a, int32_t b) { return b < 0 || (a >= 0 && a < b) ? a : b; };
  // Backward, so that all that waits for an instruction has been seen when its turn comes.
  for (auto index = static_cast<int32_t>(program_->size()) - 1; index >= 0; --index) {
    const Instruction& i = (*program_)[static_cast<size_t>(index)];
    int32_t& waiter = waiters_[static_cast<size_t>(index)];
    int32_t& of_lane = behind[static_cast<size_t>(LaneAt(index))];
    waiter = of_lane = earlier(waiter, of_lane);
    for (int k = 0; k < i.after_count; ++k) {
      const int32_t on = i.after[static_cast<size_t>(k)];
      if (on >= 0 && on < index) waiters_[static_cast<size_t>(on)] = index;
    }
  }
}

bool Clocks::FollowsWaiter(int32_t first, int32_t second) const {
  if (WaitsDirectly(first, second)) return true;
  const int32_t waiter = waiters_[static_cast<size_t>(first)];
  if (waiter < 0 || waiter >= second) return false;
  const bool known = static_cast<size_t>(LaneAt(waiter)) < columns_;
  return known ? Before(waiter, second) : WaitsDirectly(waiter, second);
}

void Clocks::Join(int32_t index, int32_t on) {
  int32_t* const clock = &clocks_[static_cast<size_t>(index) * columns_];
  const int32_t* const other = &clocks_[static_cast<size_t>(on) * columns_];
  for (size_t lane = 0; lane < columns_; ++lane) clock[lane] = std::max(clock[lane], other[lane]);
  const auto lane = static_cast<size_t>(lanes_[static_cast<size_t>(on)]);
  if (lane < columns_) clock[lane] = std::max(clock[lane], on);
}

bool Clocks::WaitsDirectly(int32_t first, int32_t second) const {
  const Instruction& i = (*program_)[static_cast<size_t>(second)];
  return std::any_of(i.after.begin(), i.after.begin() + i.after_count, [&](int32_t on) {
    return on >= first && on < second && LaneAt(on) == LaneAt(first);
  });
}

void CheckLanes(const Tables& tables, Findings* findings) {
  const Plan& plan = tables.plan;
  Clocks clocks(plan);
  for (int r = 0; r < plan.ranks; ++r) {
    clocks.Turn(r);
    const Program& program = plan.program(r);
    for (size_t at = 0; at < program.size(); ++at) {
      const auto index = static_cast<int32_t>(at);
      CheckLane(r, index, program[at], findings);
      CheckAfter(program, r, index, findings);
      for (const int32_t input : InputsOf(tables, r, program[at])) {
        // An input that is missing or too late is the business of other checks.
        if (input < 0 || input >= index || clocks.Before(input, index)) continue;
        findings->Add(Check::kEvent, r, index,
                      ToString(program[at]) + " needs " + tables.Place(r, input) +
                          ", on another lane, and does not wait for it; add " +
                          std::to_string(input) + " to its \"after\"");
      }
    }
  }
}

}  // namespace contraflow::check
