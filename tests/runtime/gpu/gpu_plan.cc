#include "tests/runtime/gpu/gpu_plan.h"

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "compiler/lower/lower.h"
#include "compiler/plan/error.h"
#include "kernels/gpu/exchange.h"
#include "runtime/model/gpu_views.h"
#include "schedules/registry.h"
#include "tests/support/support.h"

namespace contraflow {

Model SmallGpuModel(float capacity_factor) {
  return {.name = "small-gpu",
          .width = 16,
          .heads = 2,
          .experts = 4,
          .top_k = 2,
          .expert_width = 8,
          .capacity_factor = capacity_factor,
          .vocabulary = 256,
          .sequence = 6,
          .batch = 2};
}

Plan GpuPlanFor(const Model& model, std::string_view schedule, int ranks, int microbatches,
                int members, uint64_t seed, int data_parallel) {
  std::mt19937_64 random(seed);
  CostModel costs = RandomMoeCosts(&random, 2, Overlap::kAll);
  Spec spec = MakeSpec(schedule, ranks, microbatches, costs);
  spec.data_parallel = data_parallel;
  Plan plan = GeneratePlan(spec);
  plan.expert_parallel = members;
  costs.memory = GpuFootprintOf(model, plan.stages, costs.moe->layers_per_stage, members);
  return Lower(std::move(plan), costs, {.target = Level::kBuffer});
}

OneByOneRun::OneByOneRun(const Plan& plan, const Model& model, const Dataset& dataset,
                         uint64_t seed, Gpu& gpu, gpu::Stream stream, int compute_sms)
    : plan_(plan), gpu_(gpu), stream_(stream) {
  for (int d = 0; d < plan.data_parallel; ++d) {
    for (int e = 0; e < plan.expert_parallel; ++e) {
      for (int r = 0; r < plan.ranks; ++r) {
        devices_.push_back({d, e, r});
        backends_.push_back(std::make_unique<GpuDevice>(plan, model, dataset, seed, devices_.back(),
                                                        gpu, stream, compute_sms));
      }
    }
  }
}

std::vector<Device> OneByOneRun::MembersOf(int replica, int rank) const {
  std::vector<Device> members;
  for (int e = 0; e < plan_.expert_parallel; ++e) members.push_back({replica, e, rank});
  return members;
}

void OneByOneRun::Exchange(const std::vector<Device>& members, const Instruction& i) {
  std::vector<ExchangePart> parts;
  gpu::ExchangePeers peers{};
  for (const Device& member : members) {
    At(member).BeforeExchange(i, stream_);
    parts.push_back(At(member).Exchange(i));
    peers.peer[peers.members++] = parts.back().peer;
  }
  peers.local_experts = parts[0].local_experts;
  for (int e = 0; e < peers.members; ++e) {
    const ExchangePart& p = parts[static_cast<size_t>(e)];
    if (p.to_experts) {
      gpu::PullToExperts(stream_, peers, e, p.width, p.capacity, p.most_rows, p.first, p.received,
                         p.overflow, 3);
    } else {
      gpu::PullToTokens(stream_, peers, e, p.width, p.sent_rows, 3);
    }
  }
  for (const Device& member : members) At(member).AfterExchange(i, stream_);
}

void OneByOneRun::Run(const std::vector<Device>& members, const Instruction& i) {
  if (WorkOf(i.op) == Work::kAllToAll) return Exchange(members, i);
  for (const Device& member : members) {
    if (i.op == Op::STEP) {
      At(member).OptimizerStep(i.stage, stream_);
    } else {
      At(member).Compute(i, stream_);
    }
  }
}

void OneByOneRun::Transfer(int from, int to, const Instruction& send, const Instruction& receive) {
  for (int d = 0; d < plan_.data_parallel; ++d) {
    for (int e = 0; e < plan_.expert_parallel; ++e) {
      const std::span<std::byte> source = At({d, e, from}).Message(send);
      const std::span<std::byte> target = At({d, e, to}).Message(receive);
      CF_ASSERT(source.size() == target.size());
      gpu::LinkCopy(stream_, source.data(), target.data(), source.size(), 2);
    }
  }
}

void OneByOneRun::Sum(int stage) {
  const std::vector<int> holders = HoldersOfStage(plan_)[static_cast<size_t>(stage)];
  gpu::SumParts dense{};
  std::vector<gpu::SumParts> experts(static_cast<size_t>(plan_.expert_parallel));
  size_t dense_size = 0, experts_size = 0;
  for (int d = 0; d < plan_.data_parallel; ++d) {
    for (int e = 0; e < plan_.expert_parallel; ++e) {
      for (const int rank : holders) {
        const std::span<float> all = At({d, e, rank}).Gradients(stage);
        const std::span<float> owned = At({d, e, rank}).ExpertGradients(stage);
        gpu::SumParts& of_member = experts[static_cast<size_t>(e)];
        dense.part[dense.count++] = all.data();
        of_member.part[of_member.count++] = owned.data();
        dense_size = all.size();
        experts_size = owned.size();
      }
    }
  }
  gpu::OrderedSum(stream_, dense, dense_size, 2);
  for (const gpu::SumParts& parts : experts) {
    if (parts.count > 1) gpu::OrderedSum(stream_, parts, experts_size, 2);
  }
}

/// The instructions that a rank has before it: one, or messages that are posted together.
struct OneByOneRun::Window {
  const Program* program;
  size_t begin = 0, end = 0;
  std::set<size_t> done;

  void Open() {
    begin = end;
    done.clear();
    if (begin == program->size()) return;
    const Instruction& first = (*program)[begin];
    for (++end; end < program->size() && first.group >= 0; ++end) {
      if ((*program)[end].group != first.group) break;
    }
  }
  bool Ended() const { return begin == program->size(); }
  /// Its instruction of this kind, or the end.
  size_t Find(Op op, int stage, int microbatch) const {
    for (size_t i = begin; i < end; ++i) {
      const Instruction& other = (*program)[i];
      if (other.op == op && other.stage == stage && other.microbatch == microbatch) return i;
    }
    return end;
  }
};

StepResult OneByOneRun::Step(int step) {
  for (const auto& backend : backends_) {
    backend->Upload(step, stream_);
    backend->BeginStep(stream_);
  }
  std::vector<Window> windows;
  for (const Program& program : plan_.programs) {
    windows.push_back({&program, 0, 0, {}});
    windows.back().Open();
  }
  const std::vector<std::vector<int>> holders = HoldersOfStage(plan_);
  const auto at = [&](int rank) -> Window& { return windows[static_cast<size_t>(rank)]; };
  bool moved = true;
  while (moved) {
    moved = false;
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      Window& here = at(rank);
      if (here.Ended()) continue;
      const Instruction& first = (*here.program)[here.begin];
      if (first.op == Op::REDUCE) {
        const auto& ranks = holders[static_cast<size_t>(first.stage)];
        const auto is_there = [&](int other) {
          return at(other).Find(Op::REDUCE, first.stage, -1) != at(other).end;
        };
        if (!std::ranges::all_of(ranks, is_there)) continue;
        Sum(first.stage);
        for (const int other : ranks) at(other).Open();
        moved = true;
      } else if (OperandsOf(first.op) == Operands::kMessage) {
        for (size_t i = here.begin; i < here.end; ++i) {
          const Instruction& send = (*here.program)[i];
          if (here.done.count(i) > 0 || WorkOf(send.op) != Work::kSend) continue;
          const bool forward = send.op == Op::SEND_F;
          Window& there = at(send.peer);
          const size_t receive = there.Find(forward ? Op::RECV_F : Op::RECV_B,
                                            send.stage + (forward ? 1 : -1), send.microbatch);
          if (receive == there.end) continue;
          Transfer(rank, send.peer, send, (*there.program)[receive]);
          here.done.insert(i);
          there.done.insert(receive);
          moved = true;
        }
        if (here.done.size() == here.end - here.begin) {
          here.Open();
          moved = true;
        }
      } else {
        for (int d = 0; d < plan_.data_parallel; ++d) Run(MembersOf(d, rank), first);
        here.Open();
        moved = true;
      }
    }
  }
  for (const Window& window : windows) {
    if (!window.Ended()) throw Error("the plan hangs where messages are rendezvous");
  }
  for (const auto& backend : backends_) backend->Download(step, stream_);
  gpu_.Synchronize();
  std::vector<DeviceStep> results;
  for (const auto& backend : backends_) results.push_back(backend->Results(step));
  return JoinDevices(plan_, results, 0);
}

}  // namespace contraflow
