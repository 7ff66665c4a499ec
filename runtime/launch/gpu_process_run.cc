#include "runtime/launch/gpu_process_run.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/exec/gpu.h"
#include "runtime/exec/issue_order.h"
#include "runtime/exec/issuer.h"
#include "runtime/exec/step_watch.h"
#include "runtime/gpu/device.h"
#include "runtime/gpu/state_copies.h"
#include "runtime/launch/process_run.h"
#include "runtime/nccl/links.h"

namespace contraflow {
namespace {

NcclExchange ExchangeOf(const Plan& plan, const Model& model) {
  const LayerShape shape(model, plan.expert_parallel, model.experts / plan.expert_parallel);
  return {shape.local_experts, shape.width, shape.capacity, shape.expert_rows};
}

/// As long as it lives, links are aborted when the job stops.
class AbortOnStop {
 public:
  AbortOnStop(Control& control, NcclLinks& links) : control_(control) {
    control.OnStop([&links] { links.Abort(); });
  }
  AbortOnStop(const AbortOnStop&) = delete;
  ~AbortOnStop() {
    control_.OnStop([] {});
  }

 private:
  Control& control_;
};

/// What a device of the job does while it computes.
SmUse UseWith(const Plan& plan, const GpuRunOptions& options) {
  SmUse use = UseOf(plan);
  if (options.one_sided) use.links = 0;
  return use;
}

/// As ShareBytes.
std::vector<std::string> Share(Control& control, const std::string& mine) {
  std::string all;
  for (const std::string& one : control.Gather(mine)) {
    const uint64_t size = one.size();
    all.append(reinterpret_cast<const char*>(&size), sizeof size).append(one);
  }
  all = control.Broadcast(all);
  std::vector<std::string> shared;
  for (size_t at = 0; at < all.size();) {
    uint64_t size = 0;
    std::memcpy(&size, all.data() + at, sizeof size);
    shared.push_back(all.substr(at + sizeof size, size));
    at += sizeof size + size;
  }
  return shared;
}

/// What NCCL sends comes from memory that it can register; with puts as much on every device.
AllocateMemory MemoryOf(const GpuProcess& process, const GpuRunOptions& options) {
  return [&process, &options](size_t bytes) {
    uint64_t most = bytes;
    if (options.one_sided) {
      const std::string mine(reinterpret_cast<const char*>(&most), sizeof most);
      for (const std::string& other : Share(process.control, mine)) {
        uint64_t size = 0;
        std::memcpy(&size, other.data(), sizeof size);
        most = std::max(most, size);
      }
    }
    return process.nccl.NewMemory(most);
  };
}

}  // namespace

struct GpuRank::Impl {
  Impl(const Plan& the_plan, const NcclExchange& exchange, const GpuProcess& process,
       const GpuRunOptions& options, const MakeGpuBackend& make)
      : plan(the_plan),
        order(process.order),
        control(process.control),
        progress(process.progress),
        gpu(process.gpu),
        budget(BudgetOf(process.gpu.sms(), 1, UseWith(plan, options), options.partition_sms)),
        devices{order.DeviceOf(control.rank())} {
    CF_ASSERT(DeviceCount(plan) == static_cast<size_t>(control.size()));
    gpu.Partition(budget.partitions, budget.sms);
    setup = gpu.NewStream(0, Priority::kNormal, "setup");
    backend = make(devices[0], setup, budget.compute);
    lanes = std::make_unique<GpuLanes>(plan, devices[0], gpu, 0, budget.compute);
    progress.Move();
    links = std::make_unique<NcclLinks>(
        plan, exchange, order, control.rank(), budget, process.nccl, gpu,
        NcclComms::Options{process.timeout, [this] { progress.Move(); }});
    if (options.one_sided) {
      links->PutMessages([this](const std::string& mine) { return Share(control, mine); });
    }
    stop = std::make_unique<AbortOnStop>(control, *links);
    const bool leads = control.rank() == 0;
    links->Connect(control.Broadcast(leads ? process.nccl.NewId() : ""), *backend);
    issuer = std::make_unique<GpuIssuer>(
        plan, std::vector<IssuedDevice>{{devices[0], backend.get(), lanes.get()}}, gpu, *links,
        options, [this] {
          for (GpuStateCopies& each : copies) each.Poll();
          watch->Look();
        });
    watch = std::make_unique<StepWatch>(gpu, issuer->StampsOf(0), progress);
  }

  /// The issuer goes before the links, and its graph with it: each abort waits until no graph holds
  /// the communicator. A graph that hangs in the messages of another process is given back only
  /// when the aborts have ended those, so that they begin first, on a thread of their own.
  ~Impl() {
    control.OnStop([] {});
    if (!closed) links->Abort();
  }

  const Plan& plan;
  const RankOrder& order;
  Control& control;
  Progress& progress;
  Gpu& gpu;
  const SmBudget budget;
  const std::vector<Device> devices;
  gpu::Stream setup{};
  std::unique_ptr<GpuLanes> lanes;
  std::unique_ptr<GpuBackend> backend;
  std::unique_ptr<NcclLinks> links;
  std::unique_ptr<AbortOnStop> stop;
  std::unique_ptr<GpuIssuer> issuer;
  std::unique_ptr<StepWatch> watch;
  std::deque<GpuStateCopies> copies;  // that were asked for
  Clock::time_point ended;            // the last step
  bool closed = false;
};

GpuRank::GpuRank(const Plan& plan, const NcclExchange& exchange, const GpuProcess& process,
                 const GpuRunOptions& options, const MakeGpuBackend& make)
    : impl_(std::make_unique<Impl>(plan, exchange, process, options, make)) {}

GpuRank::~GpuRank() = default;

StepResult GpuRank::Step(int step) {
  const Plan& plan = impl_->plan;
  Control& control = impl_->control;
  impl_->progress.Enter(step, Progress::kStart);
  impl_->watch->Begin(step, impl_->issuer->StampsIn(step));
  // A step that was begun ahead runs since the one before it.
  const Clock::time_point start = impl_->issuer->begun_ahead() ? impl_->ended : Clock::now();
  impl_->issuer->Step(step);
  impl_->progress.Enter(step, Progress::kEnd);
  DeviceStep here = impl_->backend->Results(step);
  here.spans = impl_->issuer->SpansOf(0);
  std::vector<DeviceStep> steps = GatherSteps(plan, impl_->order, control, here);
  impl_->ended = Clock::now();
  const Time duration = Nanoseconds(impl_->ended - start);
  JoinSpans(plan, &steps);
  StepResult result = JoinDevices(plan, steps, duration);
  result.gradient_norm = impl_->issuer->norm();
  return result;
}

bool GpuRank::BeginAhead(int step) { return impl_->issuer->BeginAhead(step); }

const std::vector<Device>& GpuRank::devices() const { return impl_->devices; }
GpuBackend& GpuRank::backend() { return *impl_->backend; }
const SmBudget& GpuRank::budget() const { return impl_->budget; }
gpu::Stream GpuRank::setup() const { return impl_->setup; }

StateCopies* GpuRank::NewCopies() {
  GpuStateCopies& copies = impl_->copies.emplace_back(impl_->gpu);
  impl_->issuer->HoldUpdates(copies.copied());
  return &copies;
}

void GpuRank::Close() {
  impl_->issuer->DropGraphs();
  impl_->links->Close();
  impl_->closed = true;
}

GpuProcessRun::GpuProcessRun(const Plan& plan, const Model& model, const Dataset& dataset,
                             uint64_t seed, const GpuProcess& process, GpuRunOptions options)
    : plan_(plan),
      model_(model),
      dataset_(dataset),
      seed_(seed),
      gpu_(process.gpu),
      rank_(CheckGpuPlan(plan, model), ExchangeOf(plan, model), process, options,
            [&](Device device, gpu::Stream setup, int sms) {
              if (!options.matmul_choices.empty()) {
                choices_ = ChooseMatmulsForAll(
                    options.matmul_choices, ProductsOf(plan, model), process.gpu, setup, sms,
                    process.control.rank() == 0,
                    [&](const std::string& text) { return process.control.Broadcast(text); },
                    [&] { process.progress.Move(); });
              }
              return std::make_unique<GpuDevice>(plan, model, dataset, seed, device, process.gpu,
                                                 setup, sms, choices_, MemoryOf(process, options));
            }) {}

StageHolder& GpuProcessRun::At(Device device) {
  CF_ASSERT(device == devices()[0]);
  return static_cast<GpuDevice&>(rank_.backend());
}

std::unique_ptr<GpuSerialRun> GpuProcessRun::NewSerialRun() {
  return std::make_unique<GpuSerialRun>(plan_, model_, dataset_, seed_, gpu_, rank_.budget(),
                                        choices_);
}

GpuCustomProcessRun::GpuCustomProcessRun(const CustomStages& stages, const GpuProcess& process,
                                         GpuRunOptions options)
    : plan_(WithLanes(stages.plan())),
      gpu_(process.gpu),
      rank_(plan_, {}, process, options,
            [&](Device device, gpu::Stream setup, int sms) {
              return std::make_unique<GpuCustomDevice>(stages, device, process.gpu, setup, sms,
                                                       MemoryOf(process, options));
            }),
      reader_(process.gpu) {}

std::unique_ptr<CustomTraining> GpuCustomProcessRun::NewBeside(const CustomStages& stages) {
  return std::make_unique<GpuCustomRun>(stages, gpu_, ComparisonRunOptions(), &rank_.budget());
}

CustomDevice& GpuCustomProcessRun::At(Device device) {
  CF_ASSERT(device == devices()[0]);
  return static_cast<GpuCustomDevice&>(rank_.backend()).device();
}

void JoinSpans(const Plan& plan, std::vector<DeviceStep>* steps) {
  // The clocks of GPUs know nothing of each other. Processes begin a step together, and every
  // device has lanes that begin with it, so that its first instruction marks the beginning.
  using Message = std::tuple<Tag, int, int>;
  const auto ranks = static_cast<size_t>(plan.ranks);
  for (size_t first = 0; first < steps->size(); first += ranks) {
    std::map<Message, Time> ready;
    const auto each_message = [&](const auto& visit) {
      for (size_t r = 0; r < ranks; ++r) {
        const Program& program = plan.programs[r];
        std::vector<Span>& spans = (*steps)[first + r].spans;
        for (size_t i = 0; i < spans.size(); ++i) {
          const Work work = WorkOf(program[i].op);
          const auto self = static_cast<int>(r);
          if (work == Work::kSend)
            visit(Message(TagOf(program[i]), self, program[i].peer), &spans[i]);
          if (work == Work::kRecv)
            visit(Message(TagOf(program[i]), program[i].peer, self), &spans[i]);
        }
      }
    };
    each_message([&](const Message& edge, const Span* span) {
      const auto [at, is_new] = ready.try_emplace(edge, span->start);
      if (!is_new) at->second = std::max(at->second, span->start);
    });
    each_message([&](const Message& edge, Span* span) {
      span->start = std::min(ready.at(edge), span->end);
    });
  }
}

}  // namespace contraflow
