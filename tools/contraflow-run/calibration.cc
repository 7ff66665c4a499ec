#include "tools/contraflow-run/calibration.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "compiler/lower/interleave.h"
#include "compiler/plan/error.h"
#include "runtime/core/transport.h"

namespace contraflow {
namespace {

/// Whether its time holds waiting for other devices.
bool Waits(Op op) {
  const Work work = WorkOf(op);
  return work == Work::kSend || work == Work::kAllToAll || work == Work::kReduce;
}

/// The chunk cost that a component is part of.
Time* ChainOf(Op op, StageCost* cost) {
  static constexpr std::array kForward = {Op::ATTN_F, Op::DISPATCH_F, Op::MLP_F, Op::COMBINE_F};
  static constexpr std::array kWeights = {Op::MLP_W, Op::ATTN_W};
  const auto in = [op](const auto& ops) {
    return std::find(ops.begin(), ops.end(), op) != ops.end();
  };
  return in(kForward) ? &cost->f : in(kWeights) ? &cost->w : &cost->b;
}

}  // namespace

Time Quantile(std::vector<Time> times, double part) {
  if (times.empty()) return 0;
  const auto place = static_cast<std::ptrdiff_t>(static_cast<double>(times.size()) * part);
  std::nth_element(times.begin(), times.begin() + place, times.end());
  return times[static_cast<size_t>(place)];
}

Time MiddleMean(std::vector<Time> times) {
  if (times.empty()) return 0;
  std::sort(times.begin(), times.end());
  const size_t outer = times.size() / 4;
  const auto quarter = static_cast<std::ptrdiff_t>(outer);
  const double sum = std::accumulate(times.begin() + quarter, times.end() - quarter, 0.0);
  return static_cast<Time>(std::llround(sum / static_cast<double>(times.size() - 2 * outer)));
}

Calibration::Key Calibration::KeyOf(const Instruction& i) const {
  const Operands operands = OperandsOf(i.op);
  return {i.op, operands == Operands::kLayer || operands == Operands::kMessage ? -1 : i.stage,
          operands == Operands::kLayer ? i.layer : -1};
}

void Calibration::Add(const Timeline& timeline) {
  for (size_t r = 0; r < plan_.programs.size(); ++r) {
    for (size_t i = 0; i < plan_.programs[r].size(); ++i) {
      const Instruction& instruction = plan_.programs[r][i];
      if (WorkOf(instruction.op) == Work::kRecv) continue;
      const Span& span = timeline.ranks[r][i];
      Remember(span.end - span.start, &times_[KeyOf(instruction)]);
    }
  }
  AddMessages(timeline);
}

void Calibration::Remember(Time time, Times* times) {
  const size_t at = times->seen++ % kMostTimes;
  if (at == times->newest.size()) times->newest.emplace_back();
  times->newest[at] = time;
}

/// A rank that is at work looks at its messages between two instructions: what those took that it
/// did not wait for says nothing about them.
void Calibration::AddMessages(const Timeline& timeline) {
  std::map<Tag, Time> sent;
  const auto each = [&](Work work, const auto& visit) {
    for (size_t r = 0; r < plan_.programs.size(); ++r) {
      for (size_t i = 0; i < plan_.programs[r].size(); ++i) {
        if (WorkOf(plan_.programs[r][i].op) == work) {
          visit(r, TagOf(plan_.programs[r][i]), timeline.ranks[r][i]);
        }
      }
    }
  };
  std::vector<std::vector<Span>> work(plan_.programs.size());  // of each rank, by its end
  for (size_t r = 0; r < work.size(); ++r) {
    for (size_t i = 0; i < plan_.programs[r].size(); ++i) {
      if (!IsMessage(plan_.programs[r][i].op)) work[r].push_back(timeline.ranks[r][i]);
    }
    std::ranges::sort(work[r], {}, &Span::end);
  }
  each(Work::kSend, [&](size_t, const Tag& tag, const Span& span) { sent[tag] = span.start; });
  each(Work::kRecv, [&](size_t r, const Tag& tag, const Span& span) {
    const auto from = sent.find(tag);
    if (from == sent.end()) return;
    const auto next = std::ranges::upper_bound(work[r], from->second, {}, &Span::end);
    const bool waited = next == work[r].end() || next->start >= span.end;
    if (waited && span.end > from->second) Remember(span.end - from->second, &delays_);
  });
}

Time Calibration::Of(Op op, int stage, int layer) const {
  const auto found = times_.find({op, stage, layer});
  if (found == times_.end()) return 0;
  const std::vector<Time>& times = found->second.newest;
  return Waits(op) ? Quantile(times, 0.25) : MiddleMean(times);
}

/// A message that was copied at once.
Time Calibration::Shortest() const {
  std::vector<Time> times;
  for (const Op op : {Op::SEND_F, Op::SEND_B}) {
    const auto found = times_.find({op, -1, -1});
    if (found == times_.end()) continue;
    times.insert(times.end(), found->second.newest.begin(), found->second.newest.end());
  }
  return Quantile(std::move(times), 0.1);
}

/// Delay of a rank that waits for a message after its SEND.
Time Calibration::Delay() const {
  return delays_.newest.empty() ? Shortest() : Quantile(delays_.newest, 0.5);
}

CommCost Calibration::Messages(int64_t bytes) const {
  CommCost comm;
  const Time delay = Delay();
  const Time copied = std::min(Shortest(), delay);
  comm.latency = delay - copied;
  if (copied == 0) return comm;
  comm.bytes = bytes;
  const double rate = static_cast<double>(bytes) / FromTicks(copied, Unit::kMicroseconds);
  // Four digits are more than it is good for.
  const double digits = std::pow(10, 3 - std::floor(std::log10(rate)));
  comm.bandwidth = std::round(rate * digits) / digits;
  comm.occupancy =
      ToTicks(static_cast<double>(bytes) / comm.bandwidth, Unit::kMicroseconds, "a message");
  return comm;
}

void Calibration::CheckPlan(const Plan& plan) {
  if (plan.level >= Level::kComponent) return;
  for (const Op op : {Op::F, Op::B, Op::W}) {
    const bool has =
        std::any_of(plan.programs.begin(), plan.programs.end(), [op](const Program& program) {
          return std::any_of(program.begin(), program.end(),
                             [op](const Instruction& i) { return i.op == op; });
        });
    if (has) continue;
    throw Error("`calibrate`: the plan has no " + std::string(Name(op)) +
                " on its own, so its cost cannot be measured; use a plan of zb-1p");
  }
}

Time Calibration::LargestOf(Op op) const {
  Time largest = 0;
  for (int s = 0; s < plan_.stages; ++s) largest = std::max(largest, Of(op, s, -1));
  return largest;
}

StageCost Calibration::ChunkCosts(int stage) const {
  StageCost cost;
  cost.f = Of(Op::F, stage, -1);
  cost.b = Of(Op::B, stage, -1);
  cost.w = Of(Op::W, stage, -1);
  cost.bw = Of(Op::BW, stage, -1);
  cost.fb = Of(Op::FB, stage, -1);
  // A stage may run its forwards, or its backwards, inside pairs only.
  if (cost.bw == 0) cost.bw = cost.b + cost.w;
  if (cost.bw == 0) cost.bw = cost.fb - std::min(cost.f, cost.fb);
  if (cost.b == 0 && cost.w == 0) {
    cost.w = cost.bw / 3;
    cost.b = cost.bw - cost.w;
  }
  cost.bw = std::max({cost.bw, cost.b, cost.w});
  if (cost.f == 0) cost.f = cost.fb - std::min(cost.bw, cost.fb);
  if (cost.fb == 0) cost.fb = cost.f + cost.bw;
  cost.fb = std::max({cost.fb, cost.f, cost.b, cost.w});
  cost.reduce = Of(Op::REDUCE, stage, -1);
  if (const Time again = Of(Op::R, stage, -1); again > 0) cost.r = again;
  cost.step = Of(Op::STEP, stage, -1);
  return cost;
}

MoeCost Calibration::ComponentCosts(int layers) const {
  MoeCost moe;
  moe.layers_per_stage = layers;
  for (const ComponentCost& component : kComponentCosts) {
    for (int layer = 0; layer < layers; ++layer) {
      (moe.*component.times).push_back(Of(component.op, -1, layer));
    }
  }
  return moe;
}

CostModel Calibration::CostsOfPlan() const {
  CostModel costs;
  costs.unit = Unit::kMicroseconds;
  if (plan_.costs) costs.memory = plan_.costs->memory;
  costs.comm.latency = Delay();
  if (OffloadedCells(plan_).any()) {
    costs.host = HostCost{.latency = std::max(LargestOf(Op::OFFLOAD), LargestOf(Op::RELOAD))};
  }
  if (plan_.level < Level::kComponent) {
    for (int s = 0; s < plan_.stages; ++s) costs.stages.push_back(ChunkCosts(s));
    return costs;
  }
  if (plan_.stage_layers.empty()) {
    costs.moe = ComponentCosts(plan_.layers);
  } else {
    for (int s = 0; s < plan_.stages; ++s) {
      costs.stage_moe.push_back(ComponentCosts(plan_.LayersOf(s)));
    }
  }
  // Every plan's costs have chunk costs, though plans of components do not use them.
  for (int s = 0; s < plan_.stages; ++s) {
    StageCost chunk;
    for (const ComponentCost& component : kComponentCosts) {
      for (const Time time : costs.moe_of(s).*component.times) {
        *ChainOf(component.op, &chunk) += time;
      }
    }
    chunk.bw = chunk.b + chunk.w;
    chunk.fb = chunk.f + chunk.bw;
    chunk.reduce = Of(Op::REDUCE, s, -1);
    chunk.step = Of(Op::STEP, s, -1);
    costs.stages.push_back(chunk);
  }
  return costs;
}

CostModel Calibration::CostsForCompiler(const std::string& source) const {
  CostModel costs = CostsOfPlan();
  costs.source = source;
  if (!costs.components()) {
    // The time of a part is not that of the whole forward again.
    if (RecomputedCells(plan_).in_parts()) {
      for (StageCost& stage : costs.stages) stage.r = -1;
    }
    return costs;
  }
  if (!costs.stage_moe.empty()) return costs;
  // Components are alike on every stage, and so must be what is derived from them.
  StageCost ends;
  ends.reduce = LargestOf(Op::REDUCE);
  ends.step = LargestOf(Op::STEP);
  costs.stages = {ends};
  DeriveChunkCosts(&costs,
                   plan_.costs && plan_.costs->derived ? *plan_.costs->derived : Overlap::kAll);
  return costs;
}

}  // namespace contraflow
