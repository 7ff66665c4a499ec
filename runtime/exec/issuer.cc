#include "runtime/exec/issuer.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/exec/step_watch.h"

namespace contraflow {
namespace {

std::vector<Device> DevicesOf(const std::vector<IssuedDevice>& devices) {
  std::vector<Device> of;
  for (const IssuedDevice& device : devices) of.push_back(device.device);
  return of;
}

}  // namespace

GpuIssuer::GpuIssuer(const Plan& plan, std::vector<IssuedDevice> devices, Gpu& gpu, GpuLinks& links,
                     const IssueOptions& options, std::function<void()> waiting)
    : plan_(plan),
      devices_(std::move(devices)),
      gpu_(gpu),
      links_(links),
      options_(options),
      waiting_(std::move(waiting)),
      order_(plan, DevicesOf(devices_)),
      origin_(gpu.NewStream(0, Priority::kNormal, "step")),
      start_(gpu.NewEvent()),
      over_{gpu.NewEvent(), gpu.NewEvent()},
      guard_(devices_[0].backend->GuardOfUpdates()) {
  if (options_.run_ahead < 2) {
    throw Error("a host that is at most " + std::to_string(options_.run_ahead) +
                " instructions ahead of the GPU stands still; let it be 2 or more");
  }
  for (const IssuedDevice& device : devices_) {
    if (options_.stamps > 0) {
      stamps_.emplace_back(plan.program(device.device.rank).size(), gpu);
    }
    std::vector<GpuEvent*>& ends = ends_.emplace_back();
    std::vector<Pace>& paces = paces_.emplace_back();
    for (size_t lane = 0; lane < device.lanes->streams().size(); ++lane) {
      ends.push_back(gpu.NewEvent());
      paces.push_back({0, {gpu.NewEvent(), gpu.NewEvent()}});
    }
  }
  size_t most = 0;
  for (size_t point = 0; point < order_.size(); ++point) {
    most = std::max(most, order_[point].size());
  }
  participants_.reserve(most);
  if (guard_.numbers > 0) PlaceGuard();
}

void GpuIssuer::PlaceGuard() {
  const auto each = static_cast<size_t>(guard_.numbers);
  const size_t bytes = DeviceCount(plan_) * each * sizeof(double);
  numbers_ = reinterpret_cast<double*>(gpu_.Allocate(bytes));
  gpu_.Zero(origin_, numbers_, bytes);
  clip_ = reinterpret_cast<gpu::Clip*>(gpu_.Allocate(sizeof(gpu::Clip)));
  gpu_.Zero(origin_, clip_, sizeof(gpu::Clip));
  for (gpu::Clip*& clip : host_clips_) {
    clip = reinterpret_cast<gpu::Clip*>(gpu_.AllocateHost(sizeof(gpu::Clip)));
  }
  for (size_t d = 0; d < devices_.size(); ++d) {
    devices_[d].backend->PutGuard(numbers_ + d * each, clip_);
  }
}

bool GpuIssuer::BeginAhead(int step) {
  if (!options_.graph || numbers_ == nullptr) return false;
  if (StampsIn(step - 1) || StampsIn(step)) return false;
  ahead_ = step;
  return true;
}

void GpuIssuer::Step(int step) {
  at_ = order_.size();
  try {
    CF_ASSERT(!begun_ahead() || begun_ == step);
    if (!begun_ahead()) Begin(step);
    const bool ahead = ahead_ == step + 1;
    if (ahead) {
      Begin(step + 1);
    } else {
      PrepareAll(step + 1);
    }
    Await(over_[static_cast<size_t>(step % 2)]);
    done_ = step;
    // Into memory that this step was given, while the next one runs.
    if (ahead) PrepareAll(step + 2);
  } catch (const Aborted&) {
    throw;
  } catch (const GpuHang&) {
    throw;
  } catch (const InternalError& error) {
    throw InternalError(Place() + error.what());
  } catch (const Error& error) {
    throw Error(Place() + error.what());
  } catch (const gpu::GpuError& error) {
    throw Error(Place() + error.what());
  }
}

/// Gives all of a step to the GPU.
void GpuIssuer::Begin(int step) {
  stamped_ = StampsIn(step);
  GpuGraph*& graph = graphs_[stamped_ ? 1 : 0];
  for (const IssuedDevice& device : devices_) device.backend->Upload(step, origin_);
  if (!options_.graph) {
    Issue();
  } else {
    if (graph == nullptr) graph = Capture();
    gpu_.Launch(graph, origin_);
  }
  const auto turn = static_cast<size_t>(step % 2);
  for (const IssuedDevice& device : devices_) device.backend->Download(step, origin_);
  if (guard_.limit > 0) gpu_.CopyToHost(origin_, host_clips_[turn], clip_, sizeof(gpu::Clip));
  gpu_.Record(over_[turn], origin_);
  begun_ = step;
}

/// Captures a step as a graph. An error ends the capture and drops what it has: NCCL ends no
/// communicator while a capture holds it.
GpuGraph* GpuIssuer::Capture() {
  gpu_.BeginCapture(origin_);
  try {
    Issue();
    return gpu_.EndCapture(origin_);
  } catch (...) {
    try {
      gpu_.Drop(gpu_.EndCapture(origin_));
    } catch (const gpu::GpuError&) {
      // A capture whose lanes are not joined leaves no graph.
    }
    throw;
  }
}

void GpuIssuer::PrepareAll(int step) {
  for (const IssuedDevice& device : devices_) device.backend->Prepare(step);
}

void GpuIssuer::DropGraphs() noexcept {
  for (GpuGraph*& graph : graphs_) {
    if (graph != nullptr) gpu_.Drop(graph);
    graph = nullptr;
  }
}

std::vector<Span> GpuIssuer::SpansOf(size_t device) const {
  if (!stamped_) return {};
  uint64_t first = ~uint64_t{0};
  for (const StepStamps& stamps : stamps_) {
    for (size_t index = 0; index < stamps.size(); ++index) {
      first = std::min(first, stamps.begin(index));
    }
  }
  std::vector<uint64_t> begins(stamps_[device].size());
  for (size_t point = 0; point < order_.size(); ++point) {
    const std::span<const IssuePlace> places = order_[point];
    const Instruction& i = InstructionAt(places[0]);
    const bool together = IsMessage(i.op) || WorkOf(i.op) == Work::kReduce;
    uint64_t last = 0;
    for (const IssuePlace place : places) {
      last = std::max(last, stamps_[place.device].begin(place.index));
    }
    for (const IssuePlace place : places) {
      if (place.device != device) continue;
      begins[place.index] = together ? last : stamps_[device].begin(place.index);
    }
  }
  std::vector<Span> spans;
  for (size_t index = 0; index < begins.size(); ++index) {
    spans.push_back({static_cast<Time>(begins[index] - first),
                     static_cast<Time>(stamps_[device].end(index) - first)});
  }
  return spans;
}

void GpuIssuer::Issue() {
  Fork();
  for (size_t point = 0; point < order_.size();) {
    const size_t end = UnitEnd(point);
    IssueUnit(point, end);
    point = end;
  }
  at_ = order_.size();
  Join();
}

/// Every device begins on its compute lane, and its other lanes after that.
void GpuIssuer::Fork() {
  gpu_.Record(start_, origin_);
  for (size_t d = 0; d < devices_.size(); ++d) {
    const std::vector<gpu::Stream>& streams = devices_[d].lanes->streams();
    GpuEvent* const begun = ends_[d][GpuLanes::kCompute];
    gpu_.Wait(streams[GpuLanes::kCompute], start_);
    devices_[d].backend->BeginStep(streams[GpuLanes::kCompute]);
    gpu_.Record(begun, streams[GpuLanes::kCompute]);
    for (size_t lane = 1; lane < streams.size(); ++lane) gpu_.Wait(streams[lane], begun);
  }
}

void GpuIssuer::Join() {
  for (size_t d = 0; d < devices_.size(); ++d) {
    const std::vector<gpu::Stream>& streams = devices_[d].lanes->streams();
    const gpu::Stream compute = streams[GpuLanes::kCompute];
    for (size_t lane = 1; lane < streams.size(); ++lane) {
      gpu_.Record(ends_[d][lane], streams[lane]);
      gpu_.Wait(compute, ends_[d][lane]);
    }
  }
  for (size_t d = 0; d < devices_.size(); ++d) {
    const gpu::Stream compute = devices_[d].lanes->streams()[GpuLanes::kCompute];
    devices_[d].backend->NoteFailure(compute);
    if (stamped_) stamps_[d].Download(compute);
  }
  AwaitAll();
  if (numbers_ != nullptr) Guard();
}

/// The work that comes next in the origin follows the compute lanes of all devices.
void GpuIssuer::AwaitAll() {
  for (size_t d = 0; d < devices_.size(); ++d) {
    gpu_.Record(ends_[d][GpuLanes::kCompute], devices_[d].lanes->streams()[GpuLanes::kCompute]);
    gpu_.Wait(origin_, ends_[d][GpuLanes::kCompute]);
  }
}

void GpuIssuer::AwaitHeld(gpu::Stream stream) {
  for (GpuEvent* const held : held_) {
    options_.graph ? gpu_.WaitOutside(stream, held) : gpu_.Wait(stream, held);
  }
}

/// After a step that has failed on any device no stage is updated any more. If the norm of all
/// gradients is limited, no stage is updated before it is known.
void GpuIssuer::Guard() {
  const bool clips = guard_.limit > 0;
  links_.Gather(numbers_, static_cast<size_t>(guard_.numbers), origin_);
  gpu::ClipToNorm(origin_, numbers_, static_cast<int>(DeviceCount(plan_)), guard_.numbers,
                  clips ? guard_.limit : std::numeric_limits<float>::infinity(), clip_);
  if (!clips) return;
  AwaitHeld(origin_);
  gpu_.Record(start_, origin_);
  for (const IssuedDevice& device : devices_) {
    const gpu::Stream compute = device.lanes->streams()[GpuLanes::kCompute];
    gpu_.Wait(compute, start_);
    device.backend->ClippedStep(compute);
  }
  AwaitAll();
}

/// One after the points that are issued together with `first`: messages of one group whose other
/// ends are in other processes. If both ends are here, none of them can wait for another.
size_t GpuIssuer::UnitEnd(size_t first) const {
  const IssuePlace begin = order_[first][0];
  const int32_t group = InstructionAt(begin).group;
  size_t end = first + 1;
  if (group < 0 || !IsMessage(InstructionAt(begin).op) || order_[first].size() > 1) return end;
  while (end < order_.size() && order_[end].size() == 1) {
    const IssuePlace place = order_[end][0];
    const Instruction& i = InstructionAt(place);
    if (place.device != begin.device || i.group != group || !IsMessage(i.op)) break;
    ++end;
  }
  return end;
}

void GpuIssuer::IssueUnit(size_t first, size_t end) {
  for (at_ = first; at_ < end; ++at_) {
    for (const IssuePlace place : order_[at_]) BeginInstruction(place);
  }
  // A group begins when it is complete: nothing of it is after another of it.
  if (end - first > 1) links_.BeginGroup();
  for (at_ = first; at_ < end; ++at_) Meet(at_);
  at_ = end - 1;
  if (end - first > 1) links_.EndGroup();
  for (at_ = first; at_ < end; ++at_) {
    for (const IssuePlace place : order_[at_]) EndInstruction(place);
  }
}

void GpuIssuer::Meet(size_t point) {
  participants_.clear();
  for (const IssuePlace place : order_[point]) {
    const IssuedDevice& device = devices_[place.device];
    participants_.push_back({device.device, &InstructionAt(place),
                             device.lanes->StreamAt(place.index), device.backend});
  }
  const Participant& first = participants_[0];
  switch (WorkOf(first.instruction->op)) {
    case Work::kCompute:
    case Work::kComponent:
      return first.backend->Compute(*first.instruction, first.stream);
    case Work::kStep:
      if (guard_.limit == 0) AwaitHeld(first.stream);
      return first.backend->OptimizerStep(first.instruction->stage, first.stream);
    case Work::kSend:
    case Work::kRecv:
      return links_.Transfer(participants_);
    case Work::kReduce:
      return links_.Sum(participants_);
    case Work::kAllToAll:
      for (const Participant& p : participants_) {
        p.backend->BeforeExchange(*p.instruction, p.stream);
      }
      links_.Exchange(participants_);
      for (const Participant& p : participants_) {
        p.backend->AfterExchange(*p.instruction, p.stream);
      }
      return;
    case Work::kOffload:
    case Work::kReload:
      CF_ASSERT(false && "GpuLanes refuses plans with OFFLOAD");
  }
}

void GpuIssuer::BeginInstruction(IssuePlace place) {
  const auto [device, index] = place;
  const GpuLanes& lanes = *devices_[device].lanes;
  if (!options_.graph) KeepPace(place);
  const gpu::Stream stream = lanes.StreamAt(index);
  for (const int32_t on : lanes.WaitsAt(index)) {
    gpu_.Wait(stream, lanes.EventAt(static_cast<size_t>(on)));
  }
  if (stamped_) stamps_[device].Begin(index, stream);
}

void GpuIssuer::EndInstruction(IssuePlace place) {
  const auto [device, index] = place;
  const GpuLanes& lanes = *devices_[device].lanes;
  const gpu::Stream stream = lanes.StreamAt(index);
  if (stamped_) stamps_[device].End(index, stream);
  if (GpuEvent* const event = lanes.EventAt(index)) gpu_.Record(event, stream);
}

/// Halves of what the host may be ahead end with an event; the half before last must be over.
void GpuIssuer::KeepPace(IssuePlace place) {
  const auto [device, index] = place;
  const GpuLanes& lanes = *devices_[device].lanes;
  Pace& pace = paces_[device][lanes.LaneAt(index)];
  const int64_t half = options_.run_ahead / 2;
  if (pace.issued > 0 && pace.issued % half == 0) {
    const auto turn = static_cast<size_t>(pace.issued / half % 2);
    gpu_.Record(pace.events[turn], lanes.StreamAt(index));
    if (pace.issued > half) Await(pace.events[1 - turn]);
  }
  ++pace.issued;
}

void GpuIssuer::Await(GpuEvent* event) {
  using std::chrono::steady_clock;
  // A step of a GPU takes milliseconds; a longer wait need not keep a processor busy.
  constexpr std::chrono::milliseconds kBusy{5};
  constexpr std::chrono::microseconds kRest{50};
  const steady_clock::time_point begin = steady_clock::now();
  while (!gpu_.Done(event)) {
    links_.Poll();
    if (waiting_) waiting_();
    if (steady_clock::now() - begin > kBusy) std::this_thread::sleep_for(kRest);
  }
}

const Instruction& GpuIssuer::InstructionAt(IssuePlace place) const {
  const int rank = devices_[place.device].device.rank;
  return plan_.program(rank)[place.index];
}

std::string GpuIssuer::Place() const {
  if (at_ >= order_.size()) return "";
  const IssuePlace place = order_[at_][0];
  return "rank " + std::to_string(devices_[place.device].device.rank) + ", instruction " +
         std::to_string(place.index) + " (" + ToString(InstructionAt(place)) + "): ";
}

}  // namespace contraflow
