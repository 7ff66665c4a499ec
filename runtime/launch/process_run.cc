#include "runtime/launch/process_run.h"

#include <cstddef>
#include <cstdint>
#include <new>

#include "compiler/plan/error.h"
#include "runtime/model/views.h"

namespace contraflow {
namespace {

constexpr size_t kMostFacts = 1000;

/// Returns the place of the first fact in which the two differ; the size of the shorter if in none.
size_t FirstDifference(const std::vector<Fact>& a, const std::vector<Fact>& b) {
  size_t i = 0;
  while (i < a.size() && i < b.size() && a[i].noun == b[i].noun && a[i].key == b[i].key) ++i;
  return i;
}

/// Returns the plan, whose devices are the processes of the job.
const Plan& CheckProcesses(const Plan& plan, const Control& control) {
  CheckExecutable(plan);
  CF_ASSERT(DeviceCount(plan) == static_cast<size_t>(control.size()));
  return plan;
}

/// Bytes of one micro-batch between two stages.
int64_t MessageBytes(const Plan& plan, const Model& model) {
  const int members = plan.expert_parallel;
  const LayerShape shape(model, members, model.experts / members);
  return BytesOfValues<float>(shape)[static_cast<size_t>(Value::input)];
}

}  // namespace

std::string WriteFacts(std::span<const Fact> facts) {
  ByteWriter bytes;
  for (const Fact& fact : facts) bytes.PutText(fact.noun).PutText(fact.key).PutText(fact.shown);
  return bytes.Take();
}

std::vector<Fact> ReadFacts(std::string_view text) {
  ByteReader bytes(text, "the facts of a process are");
  std::vector<Fact> facts;
  while (!bytes.empty()) {
    if (facts.size() == kMostFacts) throw Error("a process has more facts than there are");
    Fact& fact = facts.emplace_back();
    fact.noun = bytes.TakeText();
    fact.key = bytes.TakeText();
    fact.shown = bytes.TakeText();
  }
  return facts;
}

std::string Disagreement(std::span<const std::vector<Fact>> by_process,
                         const std::function<std::string(int process)>& name) {
  std::string text, others;
  for (size_t p = 1; p < by_process.size(); ++p) {
    const std::vector<Fact>& mine = by_process[p];
    const std::vector<Fact>& first = by_process[0];
    const size_t i = FirstDifference(mine, first);
    if (i == mine.size() && i == first.size()) continue;
    const std::string who = name(static_cast<int>(p));
    if (!text.empty()) {
      others += (others.empty() ? "; also different from " + name(0) + ": " : ", ") + who;
      continue;
    }
    if (i == mine.size() || i == first.size() || mine[i].noun != first[i].noun) {
      // Different builds alone list different facts.
      text = who + " runs another build than " + name(0) + "; start the same program everywhere";
      continue;
    }
    text = who + " has a different " + mine[i].noun + " than " + name(0) + ": " + mine[i].shown +
           " against " + first[i].shown + "; give all processes the same";
  }
  return text + others;
}

std::string WriteDeviceStep(const DeviceStep& step) {
  ByteWriter bytes;
  bytes.Put(int64_t{step.dropped}).Put(uint64_t{step.losses.size()});
  for (const auto& [microbatch, loss] : step.losses) bytes.Put(int32_t{microbatch}).Put(loss);
  bytes.PutByName(step.squares).Put(uint64_t{step.spans.size()});
  for (const Span& span : step.spans) bytes.Put(int64_t{span.start}).Put(int64_t{span.end});
  return bytes.Take();
}

DeviceStep ReadDeviceStep(std::string_view text) {
  ByteReader bytes(text, "the record of a step is");
  DeviceStep step;
  step.dropped = bytes.Take<int64_t>();
  step.losses.resize(bytes.TakeCount(sizeof(int32_t) + sizeof(float)));
  for (auto& [microbatch, loss] : step.losses) {
    microbatch = bytes.Take<int32_t>();
    loss = bytes.Take<float>();
  }
  step.squares = bytes.TakeByName<double>();
  step.spans.resize(bytes.TakeCount(2 * sizeof(int64_t)));
  for (Span& span : step.spans) {
    span.start = bytes.Take<int64_t>();
    span.end = bytes.Take<int64_t>();
  }
  bytes.RequireEnd();
  return step;
}

std::vector<DeviceStep> GatherSteps(const Plan& plan, const RankOrder& order, Control& control,
                                    const DeviceStep& here) {
  const std::vector<std::string> all = control.Gather(WriteDeviceStep(here));
  std::vector<DeviceStep> steps(all.size());
  for (size_t process = 0; process < all.size(); ++process) {
    const Device device = order.DeviceOf(static_cast<int>(process));
    DeviceStep& step = steps[DeviceNumber(plan, device)] = ReadDeviceStep(all[process]);
    // A step has a span for each instruction; a step that was not timed has none.
    const size_t spans = here.spans.empty() ? 0 : plan.program(device.rank).size();
    if (step.spans.size() != spans) {
      throw Error("the record of a step is another plan's");
    }
  }
  return steps;
}

std::unique_ptr<SharedMemory> ShareMemory(Control& control, int64_t message_bytes) {
  std::unique_ptr<SharedMemory> memory;
  if (control.rank() == 0) {
    memory = std::make_unique<SharedMemory>(control.size(),
                                            SharedMemory::RingBytes(control.size(), message_bytes));
    control.Broadcast(memory->Invitation());
  } else {
    memory = std::make_unique<SharedMemory>(control.size(), control.Broadcast(""));
  }
  control.Barrier();
  return memory;
}

void Walk(const Plan& plan, Device device, int step, Executor* executor) {
  try {
    executor->Run(step, Clock::now());
  } catch (const Aborted&) {
    throw;
  } catch (...) {
    std::rethrow_exception(NamingDevice(plan, device, std::current_exception()));
  }
}

ProcessRun::ProcessRun(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed,
                       const HostProcess& process, bool fill)
    : HostRun(model, std::make_unique<DeviceProcess<HostBackend>>(
                         CheckProcesses(plan, process.control), process, MessageBytes(plan, model),
                         [&](Device device, Transport& transport) {
                           return std::make_unique<HostBackend>(plan, model, dataset, seed, device,
                                                                transport, fill);
                         })) {
  ReserveForRanks(1);
}

std::string DescribeProgress(const Plan* plan, const RankOrder* order, int process,
                             const Progress::Snapshot& at) {
  if (at.step == 0 || plan == nullptr || order == nullptr) return "before the first step";
  std::string text = "step " + std::to_string(at.step);
  const Device device = order->DeviceOf(process);
  const Program& program = plan->program(device.rank);
  // The fields change while they are read, so none is trusted.
  const auto known = [&](int64_t i) { return i >= 0 && i < static_cast<int64_t>(program.size()); };
  const auto named = [&](int64_t i) {
    return "instruction " + std::to_string(i) + " (" + ToString(program[static_cast<size_t>(i)]) +
           ")";
  };
  if (known(at.index)) text += ", " + named(at.index);
  if (at.index == Progress::kStart) text += ", at its start";
  if (at.index == Progress::kEnd) text += ", at its end";
  if (at.process >= 0 && at.process < order->processes()) {
    text += ", waits for " + NameOf(*plan, order->DeviceOf(at.process));
    if (known(at.waited) && at.waited != at.index) text += " at " + named(at.waited);
  }
  return text;
}

}  // namespace contraflow
