#include "runtime/launch/process_run.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

#include "compiler/plan/error.h"
#include "runtime/launch/threaded_run.h"

namespace contraflow {
namespace {

constexpr size_t kMostFacts = 1000;

// The machines of a job are of one kind: numbers go as they lie in memory.

template <typename T>
void Put(const T& value, std::string* bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  bytes->append(reinterpret_cast<const char*>(&value), sizeof value);
}

void PutText(std::string_view text, std::string* bytes) {
  Put(uint64_t{text.size()}, bytes);
  bytes->append(text);
}

/// What `what` says is cut off where bytes are missing.
template <typename T>
T Take(std::string_view* bytes, const char* what) {
  T value;
  if (bytes->size() < sizeof value) throw Error(std::string(what) + " cut off");
  std::memcpy(&value, bytes->data(), sizeof value);
  bytes->remove_prefix(sizeof value);
  return value;
}

/// A count of records of `size` bytes, which must all be there.
size_t TakeCount(std::string_view* bytes, size_t size, const char* what) {
  const auto count = Take<uint64_t>(bytes, what);
  if (count > bytes->size() / size) throw Error(std::string(what) + " cut off");
  return static_cast<size_t>(count);
}

std::string TakeText(std::string_view* bytes) {
  const size_t size = TakeCount(bytes, 1, "the facts of a process are");
  const std::string text(bytes->substr(0, size));
  bytes->remove_prefix(size);
  return text;
}

/// The first fact in which the two differ, by its place in the longer list; its size if in none.
size_t FirstDifference(const std::vector<Fact>& a, const std::vector<Fact>& b) {
  size_t i = 0;
  while (i < a.size() && i < b.size() && a[i].noun == b[i].noun && a[i].key == b[i].key) ++i;
  return i;
}

}  // namespace

std::string WriteFacts(std::span<const Fact> facts) {
  std::string bytes;
  for (const Fact& fact : facts) {
    PutText(fact.noun, &bytes);
    PutText(fact.key, &bytes);
    PutText(fact.shown, &bytes);
  }
  return bytes;
}

std::vector<Fact> ReadFacts(std::string_view bytes) {
  std::vector<Fact> facts;
  while (!bytes.empty()) {
    if (facts.size() == kMostFacts) throw Error("a process has more facts than there are");
    Fact fact;
    fact.noun = TakeText(&bytes);
    fact.key = TakeText(&bytes);
    fact.shown = TakeText(&bytes);
    facts.push_back(std::move(fact));
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
      // Only processes of different builds list different facts.
      text = who + " runs another build than " + name(0) + "; start the same program everywhere";
      continue;
    }
    text = who + " has a different " + mine[i].noun + " than " + name(0) + ": " + mine[i].shown +
           " against " + first[i].shown + "; give all processes the same";
  }
  return text + others;
}

namespace {

/// The plan, if the processes of the job are its devices.
const Plan& CheckProcesses(const Plan& plan, const Control& control) {
  CheckExecutable(plan);
  CF_ASSERT(DeviceCount(plan) == static_cast<size_t>(control.size()));
  return plan;
}

constexpr const char* kStepIs = "the record of a step is";
constexpr size_t kLossBytes = sizeof(int32_t) + sizeof(float);
constexpr size_t kSpanBytes = 2 * sizeof(int64_t);

}  // namespace

std::string WriteDeviceStep(const DeviceStep& step) {
  std::string bytes;
  bytes.reserve(3 * sizeof(uint64_t) + step.losses.size() * kLossBytes +
                step.spans.size() * kSpanBytes);
  Put(int64_t{step.dropped}, &bytes);
  Put(uint64_t{step.losses.size()}, &bytes);
  for (const auto& [microbatch, loss] : step.losses) {
    Put(int32_t{microbatch}, &bytes);
    Put(loss, &bytes);
  }
  Put(uint64_t{step.spans.size()}, &bytes);
  for (const Span& span : step.spans) {
    Put(int64_t{span.start}, &bytes);
    Put(int64_t{span.end}, &bytes);
  }
  return bytes;
}

DeviceStep ReadDeviceStep(std::string_view bytes) {
  DeviceStep step;
  step.dropped = Take<int64_t>(&bytes, kStepIs);
  step.losses.resize(TakeCount(&bytes, kLossBytes, kStepIs));
  for (auto& [microbatch, loss] : step.losses) {
    microbatch = Take<int32_t>(&bytes, kStepIs);
    loss = Take<float>(&bytes, kStepIs);
  }
  step.spans.resize(TakeCount(&bytes, kSpanBytes, kStepIs));
  for (Span& span : step.spans) {
    span.start = Take<int64_t>(&bytes, kStepIs);
    span.end = Take<int64_t>(&bytes, kStepIs);
  }
  if (!bytes.empty()) throw Error("the record of a step has bytes behind its end");
  return step;
}

std::vector<DeviceStep> GatherSteps(const Plan& plan, const RankOrder& order, Control& control,
                                    const DeviceStep& here) {
  const std::vector<std::string> all = control.Gather(WriteDeviceStep(here));
  std::vector<DeviceStep> steps(all.size());
  for (size_t process = 0; process < all.size(); ++process) {
    const Device device = order.DeviceOf(static_cast<int>(process));
    steps[DeviceNumber(plan, device)] = ReadDeviceStep(all[process]);
  }
  return steps;
}

ProcessRun::ProcessRun(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed,
                       const RankOrder& order, Transport& transport, Control& control,
                       Progress& progress, bool fill)
    : plan_(CheckProcesses(plan, control)),
      order_(order),
      control_(control),
      devices_{order.DeviceOf(control.rank())},
      backend_(plan, model, dataset, seed, devices_[0], transport, fill),
      executor_(plan, devices_[0].rank, backend_, transport, &progress) {}

StepResult ProcessRun::Step(int step) {
  control_.Barrier();
  const Clock::time_point start = Clock::now();
  try {
    executor_.Run(step, start);
  } catch (const Aborted&) {
    throw;
  } catch (...) {
    std::rethrow_exception(NamingDevice(plan_, devices_[0], std::current_exception()));
  }
  const std::vector<DeviceStep> steps =
      GatherSteps(plan_, order_, control_, DeviceStepOf(backend_, executor_.spans()));
  const Time duration = Nanoseconds(Clock::now() - start);
  for (size_t d = 0; d < steps.size(); ++d) {
    const size_t rank = d % static_cast<size_t>(plan_.ranks);
    if (steps[d].spans.size() != plan_.programs[rank].size()) {
      throw Error("the record of a step is of another program than rank " + std::to_string(rank) +
                  "'s");
    }
  }
  return JoinDevices(plan_, steps, duration);
}

HostBackend& ProcessRun::At(Device device) {
  CF_ASSERT(device == devices_[0]);
  return backend_;
}

std::string DescribeProgress(const Plan* plan, const RankOrder* order, int process,
                             const Progress::Snapshot& at) {
  if (at.step == 0 || plan == nullptr || order == nullptr) return "before the first step";
  std::string text = "step " + std::to_string(at.step);
  const Device device = order->DeviceOf(process);
  const Program& program = plan->program(device.rank);
  // Fields are read one by one while they change, so none is trusted.
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
