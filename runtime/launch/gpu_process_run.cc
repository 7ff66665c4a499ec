#include "runtime/launch/gpu_process_run.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/core/bytes.h"
#include "runtime/gpu/device.h"
#include "runtime/launch/process_run.h"

namespace contraflow {
namespace {

NcclExchange ExchangeOf(const Plan& plan, const Model& model) {
  const LayerShape shape(model, plan.expert_parallel, model.experts / plan.expert_parallel);
  return {shape.local_experts, shape.width, shape.capacity, shape.expert_rows};
}

/// Work of a device of the job while it computes.
SmUse UseWith(const Plan& plan, const GpuRunOptions& options) {
  SmUse use = UseOf(plan);
  if (options.one_sided) use.links = 0;
  return use;
}

/// Like ShareBytes.
std::vector<std::string> Share(Control& control, const std::string& mine) {
  ByteWriter all;
  for (const std::string& one : control.Gather(mine)) all.PutText(one);
  const std::string bytes = control.Broadcast(all.Take());
  std::vector<std::string> shared;
  for (ByteReader reader(bytes, "what processes share is"); !reader.empty();) {
    shared.push_back(reader.TakeText());
  }
  return shared;
}

/// Messages of NCCL come from memory that it can register; with puts as much on every device.
AllocateMemory MemoryOf(const GpuProcess& process, const GpuRunOptions& options) {
  return [&process, &options](size_t bytes) {
    uint64_t most = bytes;
    if (options.one_sided) {
      for (const std::string& other : Share(process.control, ByteWriter().Put(most).Take())) {
        most = std::max(most, ByteReader(other, "the memory of a process is").Take<uint64_t>());
      }
    }
    return process.nccl.NewMemory(most);
  };
}

}  // namespace

GpuRank::GpuRank(const Plan& plan, const NcclExchange& exchange, const GpuProcess& process,
                 const GpuRunOptions& options, const MakeGpuBackend& make)
    : GpuDevices(plan, process.gpu,
                 BudgetOf(process.gpu.sms(), 1, UseWith(plan, options), options.partition_sms),
                 /*divide=*/true, {process.order.DeviceOf(process.control.rank())}, make),
      order_(process.order),
      control_(process.control) {
  CF_ASSERT(DeviceCount(plan) == static_cast<size_t>(control_.size()));
  Progress& progress = process.progress;
  progress.Move();
  auto links = std::make_unique<NcclLinks>(
      plan, exchange, order_, control_.rank(), budget_, process.nccl, gpu_,
      NcclComms::Options{process.timeout, [&progress] { progress.Move(); }});
  if (options.one_sided) {
    links->PutMessages([this](const std::string& mine) { return Share(control_, mine); });
  }
  NcclLinks& joined = *links;
  links_ = std::move(links);
  control_.OnStop([this] { links_->Abort(); });
  try {
    joined.Connect(control_.Broadcast(control_.rank() == 0 ? process.nccl.NewId() : ""),
                   *backends_[0]);
    MakeIssuer(options);
    watch_ = std::make_unique<StepWatch>(GpuWatch::Watched{devices_[0], issuer_->StampsOf(0)}, gpu_,
                                         progress);
  } catch (...) {
    control_.OnStop([] {});
    throw;
  }
}

/// The issuer goes before the links, and its graph with it: each abort waits until no graph holds
/// the communicator. A graph that hangs in the messages of another process is given back only when
/// the aborts have ended those, so that they begin first, on a thread of their own.
GpuRank::~GpuRank() {
  control_.OnStop([] {});
  links_->Abort();
}

void GpuRank::Gather(std::vector<DeviceStep>* steps) {
  *steps = GatherSteps(plan_, order_, control_, steps->front());
  ended_ = Clock::now();
  JoinSpans(plan_, steps);
}

GpuProcessRun::GpuProcessRun(const Plan& plan, const Model& model, const Dataset& dataset,
                             uint64_t seed, const GpuProcess& process, const GpuRunOptions& options)
    : GpuRun(
          plan, model, dataset, seed, process.gpu,
          [&](const Plan& with, const MakeGpuBackend& make) {
            return std::make_unique<GpuRank>(with, ExchangeOf(plan, model), process, options, make);
          },
          [&](gpu::Stream setup, int sms) {
            if (options.matmul_choices.empty()) return MatmulChoices();
            return ChooseMatmulsForAll(
                options.matmul_choices, ProductsOf(plan, model), process.gpu, setup, sms,
                process.control.rank() == 0,
                [&](const std::string& text) { return process.control.Broadcast(text); },
                [&] { process.progress.Move(); });
          },
          MemoryOf(process, options)) {}

GpuCustomProcessRun::GpuCustomProcessRun(const CustomStages& stages, const GpuProcess& process,
                                         const GpuRunOptions& options)
    : GpuCustomRun(
          stages, process.gpu,
          [&](const Plan& plan, const MakeGpuBackend& make) {
            return std::make_unique<GpuRank>(plan, NcclExchange{}, process, options, make);
          },
          MemoryOf(process, options)) {}

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
