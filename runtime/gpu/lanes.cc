#include "runtime/gpu/lanes.h"

#include <map>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/gpu/issue_order.h"

namespace contraflow {
namespace {

/// A lane, and the peer of one that messages have to themselves.
using LaneKey = std::pair<Lane, int32_t>;

LaneKey KeyOf(const Instruction& i) {
  const Lane lane = LaneOf(i.op);
  return {lane, lane == Lane::kSend || lane == Lane::kRecv ? i.peer : -1};
}

std::string NameOf(Device device, LaneKey key) {
  std::string name = "replica " + std::to_string(device.replica) + " member " +
                     std::to_string(device.member) + " rank " + std::to_string(device.rank) + " " +
                     std::string(Name(key.first));
  if (key.second >= 0) name += " " + std::to_string(key.second);
  return name;
}

/// Issued together with others of its group, an instruction cannot wait for one of them.
void CheckWait(const Program& program, int rank, size_t index, int32_t on, size_t group_begin) {
  if (on >= 0 && static_cast<size_t>(on) < group_begin) return;
  throw Error("rank " + std::to_string(rank) + ", instruction " + std::to_string(index) + " (" +
              ToString(program[index]) + "): waits for " + std::to_string(on) +
              ", which is not issued before it; verify the plan");
}

}  // namespace

GpuLanes::GpuLanes(const Plan& plan, Device device, Gpu& gpu, int partition, int sms) {
  const Program& program = plan.program(device.rank);
  std::map<LaneKey, int32_t> numbers;
  const auto number = [&](LaneKey key) {
    const auto [at, is_new] = numbers.emplace(key, static_cast<int32_t>(streams_.size()));
    if (is_new) {
      const Priority priority = key.first == Lane::kCompute ? Priority::kNormal : Priority::kHigh;
      streams_.push_back(gpu.NewStream(partition, priority, NameOf(device, key)));
      streams_.back().sms = sms;
    }
    return at->second;
  };
  number({Lane::kCompute, -1});
  for (const Instruction& i : program) lanes_.push_back(number(KeyOf(i)));

  events_.resize(program.size());
  size_t group_begin = 0, group_end = 0;
  for (size_t index = 0; index < program.size(); ++index) {
    if (index >= group_end) {
      group_begin = index;
      group_end = GroupEnd(program, index);
    }
    waits_begin_.push_back(waits_.size());
    const Instruction& i = program[index];
    for (int a = 0; a < i.after_count; ++a) {
      const int32_t on = i.after[static_cast<size_t>(a)];
      CheckWait(program, device.rank, index, on, group_begin);
      const auto other = static_cast<size_t>(on);
      if (lanes_[other] == lanes_[index]) continue;  // A stream keeps its order.
      waits_.push_back(on);
      if (events_[other] == nullptr) events_[other] = gpu.NewEvent();
    }
  }
  waits_begin_.push_back(waits_.size());
}

}  // namespace contraflow
