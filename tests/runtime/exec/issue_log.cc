#include "tests/runtime/exec/issue_log.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "compiler/plan/error.h"
#include "tests/emulator/emulator.h"

namespace contraflow {
namespace {

std::string NameOf(Device device) {
  return std::to_string(device.replica) + "." + std::to_string(device.member) + "." +
         std::to_string(device.rank);
}

std::string PlaceOf(Device device, size_t index) {
  return NameOf(device) + "#" + std::to_string(index);
}

/// Replica, member and rank, lane and peer.
using LaneName = std::string;
LaneName LaneNameOf(Device device, const Instruction& i) {
  std::string name = NameOf(device) + " ";
  const Work work = WorkOf(i.op);
  if (work == Work::kSend) return name + "to " + std::to_string(i.peer);
  if (work == Work::kRecv) return name + "from " + std::to_string(i.peer);
  if (work == Work::kAllToAll) return name + "all-to-all";
  if (work == Work::kReduce) return name + "reduce";
  return name + "compute";
}

std::vector<std::string> KernelsOf(const Instruction& i, const std::string& place) {
  switch (WorkOf(i.op)) {
    case Work::kSend:
    case Work::kRecv:
      return {"transfer " + place};
    case Work::kAllToAll:
      return {"before " + place, "exchange " + place, "after " + place};
    case Work::kReduce:
      return {"sum " + place};
    case Work::kStep:
      return {"step " + place};
    case Work::kCompute:
    case Work::kComponent:
    case Work::kOffload:
    case Work::kReload:
      break;
  }
  return {"compute " + place};
}

/// Order that the plan gives one lane: its kernels, and before which of them it waits for what.
struct ExpectedLane {
  std::vector<std::string> kernels;
  std::map<std::string, std::set<std::string>> waits;  // of a kernel: for those after these
};

std::map<LaneName, ExpectedLane> ExpectedLanes(const Plan& plan) {
  std::map<LaneName, ExpectedLane> lanes;
  for (const Device& device : AllDevices(plan)) {
    const Program& program = plan.program(device.rank);
    const std::string begin = "begin " + NameOf(device), note = "note " + NameOf(device);
    const LaneName compute = NameOf(device) + " compute";
    lanes[compute].kernels.push_back(begin);
    lanes[compute].waits[begin].insert("");  // whatever the step begins with
    for (size_t index = 0; index < program.size(); ++index) {
      const Instruction& i = program[index];
      const LaneName name = LaneNameOf(device, i);
      ExpectedLane& lane = lanes[name];
      const std::vector<std::string> kernels = KernelsOf(i, PlaceOf(device, index));
      std::set<std::string>& waits = lane.waits[kernels[0]];
      if (lane.kernels.empty()) waits.insert(begin);
      for (int a = 0; a < i.after_count; ++a) {
        const auto on = static_cast<size_t>(i.after[static_cast<size_t>(a)]);
        if (LaneNameOf(device, program[on]) == name) continue;
        waits.insert(KernelsOf(program[on], PlaceOf(device, on)).back());
      }
      lane.kernels.insert(lane.kernels.end(), kernels.begin(), kernels.end());
    }
    for (const auto& [name, lane] : lanes) {
      if (name == compute || name.rfind(NameOf(device) + " ", 0) != 0) continue;
      lanes[compute].waits[note].insert(lane.kernels.back());
    }
    lanes[compute].kernels.push_back(note);
  }
  return lanes;
}

std::string TextOf(const std::set<std::string>& names) {
  std::string text = "{";
  for (const std::string& name : names) text += (text.size() > 1 ? ", " : "") + name;
  return text + "}";
}

/// Order of one stream in the log.
struct SeenStream {
  std::vector<std::string> kernels;
  std::map<std::string, std::set<std::string>> waits;
  std::set<std::string> pending;  // waits that nothing has followed yet
};

}  // namespace

NamedBackend::NamedBackend(const Plan& plan, Device device, Executed* executed)
    : program_(plan.program(device.rank)), device_(device), executed_(executed) {}

std::string NamedBackend::name() const { return NameOf(device_); }

void NamedBackend::Launch(const std::string& name, gpu::Stream stream) {
  emulator::Enqueue(stream.handle, name.c_str(),
                    [name, executed = executed_] { executed->push_back(name); });
}
void NamedBackend::Launch(std::string_view what, const Instruction& instruction,
                          gpu::Stream stream) {
  const auto at = std::ranges::find(program_, instruction);
  CF_ASSERT(at != program_.end());
  const auto index = static_cast<size_t>(at - program_.begin());
  Launch(std::string(what) + " " + PlaceOf(device_, index), stream);
}

void NamedBackend::Upload(int step, gpu::Stream) { uploads.push_back(step); }
void NamedBackend::BeginStep(gpu::Stream stream) { Launch("begin " + name(), stream); }
void NamedBackend::Compute(const Instruction& component, gpu::Stream stream) {
  Launch("compute", component, stream);
}
void NamedBackend::BeforeExchange(const Instruction& component, gpu::Stream stream) {
  Launch("before", component, stream);
}
void NamedBackend::AfterExchange(const Instruction& component, gpu::Stream stream) {
  Launch("after", component, stream);
}
ExchangePart NamedBackend::Exchange(const Instruction&) { return {}; }
std::span<std::byte> NamedBackend::Message(const Instruction&) { return {}; }
std::span<float> NamedBackend::Gradients(int) { return {}; }
std::span<float> NamedBackend::ExpertGradients(int) { return {}; }
void NamedBackend::OptimizerStep(int stage, gpu::Stream stream) {
  for (const Instruction& i : program_) {
    if (i.op == Op::STEP && i.stage == stage) Launch("step", i, stream);
  }
}
void NamedBackend::NoteFailure(gpu::Stream stream) { Launch("note " + name(), stream); }
void NamedBackend::Download(int step, gpu::Stream) { downloads.push_back(step); }
DeviceStep NamedBackend::Results(int) { return {}; }

void NamedLinks::Meet(std::string_view what, std::span<const Participant> participants) {
  calls.push_back(std::string(what) + " " + std::to_string(participants.size()));
  if (joining != nullptr) {
    std::vector<GpuEvent*> there;
    for (const Participant& p : participants) {
      there.push_back(joining->NewEvent());
      joining->Record(there.back(), p.stream);
    }
    for (const Participant& p : participants) {
      for (GpuEvent* const event : there) joining->Wait(p.stream, event);
    }
  }
  for (const Participant& p : participants) {
    dynamic_cast<NamedBackend&>(*p.backend).Launch(what, *p.instruction, p.stream);
  }
}

std::string FlawOfIssue(const Plan& plan, std::span<const GpuCall> log) {
  std::map<std::string, SeenStream> streams;
  std::map<int, std::string> events;  // the kernel that each was recorded after
  std::string last_record;
  for (const GpuCall& call : log) {
    SeenStream& stream = streams[call.stream];
    if (call.kind == GpuCall::Kind::kKernel) {
      stream.kernels.push_back(call.kernel);
      stream.waits[call.kernel] = std::exchange(stream.pending, {});
    } else if (call.kind == GpuCall::Kind::kRecord) {
      if (!stream.pending.empty() && !stream.kernels.empty()) {
        return "a record on " + call.stream + " that stands for more than what is before it";
      }
      events[call.event] = stream.kernels.empty() ? "" : stream.kernels.back();
    } else if (call.kind == GpuCall::Kind::kWait) {
      if (events.count(call.event) == 0) return "a wait on " + call.stream + " for nothing";
      if (!stream.pending.insert(events[call.event]).second) {
        return "a wait on " + call.stream + " that repeats one";
      }
    }
  }
  const std::map<LaneName, ExpectedLane> lanes = ExpectedLanes(plan);
  std::map<std::string, const SeenStream*> by_first;  // by their first kernels
  std::set<std::string> joined, notes;
  size_t with_kernels = 0;
  for (const auto& [name, stream] : streams) {
    if (stream.kernels.empty()) {
      joined.insert(stream.pending.begin(), stream.pending.end());
      continue;
    }
    ++with_kernels;
    by_first[stream.kernels[0]] = &stream;
    if (!stream.pending.empty()) return "stream " + name + " waits at its end";
  }
  for (const auto& [name, lane] : lanes) {
    if (by_first.count(lane.kernels[0]) == 0) return "lane " + name + " has no stream";
    const SeenStream& stream = *by_first[lane.kernels[0]];
    if (stream.kernels != lane.kernels) return "lane " + name + " has other kernels";
    for (const std::string& kernel : lane.kernels) {
      const auto expected = lane.waits.find(kernel);
      const std::set<std::string> none;
      const std::set<std::string>& waits = expected == lane.waits.end() ? none : expected->second;
      const std::set<std::string>& seen = stream.waits.at(kernel);
      if (seen != waits) {
        return kernel + " waits for " + TextOf(seen) + ", not for " + TextOf(waits);
      }
      if (kernel.rfind("note", 0) == 0) notes.insert(kernel);
    }
  }
  if (with_kernels != lanes.size()) return "there are more streams than lanes";
  if (joined != notes) return "the step ends after " + TextOf(joined);
  return "";
}

std::string FlawOfExecution(const Plan& plan, const Executed& executed) {
  std::map<std::string, size_t> when;
  for (const std::string& name : executed) {
    if (!when.emplace(name, when.size()).second) return name + " ran twice";
  }
  size_t expected = 0;
  for (const auto& [name, lane] : ExpectedLanes(plan)) {
    for (size_t k = 0; k < lane.kernels.size(); ++k) {
      const std::string& kernel = lane.kernels[k];
      ++expected;
      if (when.count(kernel) == 0) return kernel + " did not run";
      if (k > 0 && when[kernel] < when[lane.kernels[k - 1]]) {
        return kernel + " ran before " + lane.kernels[k - 1];
      }
      const auto waits = lane.waits.find(kernel);
      if (waits == lane.waits.end()) continue;
      for (const std::string& before : waits->second) {
        if (!before.empty() && when[kernel] < when[before]) {
          return kernel + " ran before " + before;
        }
      }
    }
  }
  return expected == when.size() ? "" : "more ran than the plan has";
}

}  // namespace contraflow
