#include "schedules/published/placement.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/recompute_cost.h"

namespace contraflow {
namespace {

Plan EmptyPlan(const Spec& spec, int stages) {
  Plan plan;
  plan.schedule = spec.schedule;
  plan.level = Level::kCompute;
  plan.ranks = spec.ranks;
  plan.stages = stages;
  plan.microbatches = spec.microbatches;
  plan.data_parallel = spec.data_parallel;
  plan.expert_parallel = ParallelOf(spec).ep;
  plan.programs.resize(static_cast<size_t>(spec.ranks));
  return plan;
}

std::vector<int> Range(int first, int count) {
  std::vector<int> range(static_cast<size_t>(count));
  std::iota(range.begin(), range.end(), first);
  return range;
}

}  // namespace

Plan SingleRoutePlan(const Spec& spec, std::vector<int> ranks) {
  Plan plan = EmptyPlan(spec, static_cast<int>(ranks.size()));
  plan.routes.push_back({std::move(ranks), Range(0, spec.microbatches)});
  return plan;
}

Plan LinearPlan(const Spec& spec) { return SingleRoutePlan(spec, LinearPlacement(spec.ranks)); }

Plan VPlan(const Spec& spec) { return SingleRoutePlan(spec, VPlacement(spec.ranks)); }

Plan BidirectionalPlan(const Spec& spec) {
  Plan plan = EmptyPlan(spec, spec.ranks);
  const int half = spec.microbatches / 2;
  std::vector<int> down = LinearPlacement(spec.ranks);
  std::vector<int> up(down.rbegin(), down.rend());
  plan.routes.push_back({std::move(down), Range(0, half)});
  plan.routes.push_back({std::move(up), Range(half, spec.microbatches - half)});
  return plan;
}

std::vector<int> LinearPlacement(int ranks) { return Range(0, ranks); }

std::vector<int> VPlacement(int ranks) { return WavePlacement(ranks, 2); }

std::vector<int> WavePlacement(int ranks, int chunks) {
  const std::vector<int> down = LinearPlacement(ranks);
  std::vector<int> placement;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    if (chunk % 2 == 0) {
      placement.insert(placement.end(), down.begin(), down.end());
    } else {
      placement.insert(placement.end(), down.rbegin(), down.rend());
    }
  }
  return placement;
}

std::string RejectChunks(const Spec& spec, int chunks) {
  if (spec.chunks == 0 || spec.chunks == chunks) return "";
  return "has " + std::to_string(chunks) + (chunks == 1 ? " stage" : " stages") +
         " a rank, `chunks` is " + std::to_string(spec.chunks) + "; leave `chunks` out";
}

FormulaCosts LettersOf(const Spec& spec) {
  const StageCost& cost = spec.costs.stage(0);
  return {cost.f, cost.bw, cost.b, cost.w, cost.fb};
}

bool HasClosedForm(const Spec& spec) {
  const CommCost& comm = spec.costs.comm;
  return spec.costs.uniform() && spec.costs.microbatch_scale.empty() && comm.latency == 0 &&
         comm.occupancy == 0;
}

std::vector<Time> OnEachRank(const Spec& spec, Time bubble) {
  return std::vector<Time>(static_cast<size_t>(spec.ranks), bubble);
}

Time FillTime(const Spec& spec) {
  const FormulaCosts c = LettersOf(spec);
  return (spec.ranks - 1) * (c.f + c.full_b);
}

std::vector<Time> FillOnEachRank(const Spec& spec) {
  return HasClosedForm(spec) ? OnEachRank(spec, FillTime(spec)) : std::vector<Time>();
}

Plan SerialOrder(const Plan& frame) {
  Plan plan = FrameOf(frame);
  plan.schedule = "one micro-batch at a time";
  std::vector<const Route*> route_of(static_cast<size_t>(frame.microbatches));
  for (const Route& route : frame.routes) {
    for (const int m : route.microbatches) route_of[static_cast<size_t>(m)] = &route;
  }
  for (int m = 0; m < frame.microbatches; ++m) {
    const std::vector<int>& ranks = route_of[static_cast<size_t>(m)]->ranks;
    const auto program = [&](int s) -> Program& {
      return plan.programs[static_cast<size_t>(ranks[static_cast<size_t>(s)])];
    };
    for (int s = 0; s < frame.stages; ++s) program(s).push_back(CellOp(Op::F, s, m));
    for (int s = frame.stages - 1; s >= 0; --s) program(s).push_back(CellOp(Op::BW, s, m));
  }
  return plan;
}

namespace {

std::vector<int64_t> SerialPeaks(const Plan& frame, const std::vector<CellBytes>& cells) {
  std::vector<int64_t> peaks(static_cast<size_t>(frame.ranks), 0);
  for (const Route& route : frame.routes) {
    // Between the last F and the first B the whole of one chunk and the kept part of the others; of
    // the last on a rank, whose backward comes first, all of it.
    std::vector<int64_t> held(static_cast<size_t>(frame.ranks), 0);
    for (size_t s = 0; s < route.ranks.size(); ++s) {
      const CellBytes& bytes = cells[s];
      const bool counted = bytes.activation == 0;
      const int64_t whole = counted ? 1 : bytes.activation;
      const auto rank = static_cast<size_t>(route.ranks[s]);
      peaks[rank] = std::max(peaks[rank], held[rank] + whole);
      held[rank] += counted ? whole : bytes.input;
    }
  }
  return peaks;
}

}  // namespace

std::vector<int64_t> SerialPeaks(const Plan& frame, const CostModel& costs, bool recomputed) {
  std::vector<CellBytes> cells;
  for (int s = 0; s < frame.stages; ++s) cells.push_back(BytesOfCell(costs, s, recomputed));
  return SerialPeaks(frame, cells);
}

int64_t SerialPeak(const Plan& frame, const CostModel& costs, bool recomputed) {
  return std::ranges::max(SerialPeaks(frame, costs, recomputed));
}

int64_t SerialPeak(const Plan& frame, const std::vector<CellBytes>& cells) {
  return std::ranges::max(SerialPeaks(frame, cells));
}

namespace {

/// The stage that two routes have on one rank, the last of several; -1: none.
int SharedStage(const Plan& plan) {
  for (size_t s = static_cast<size_t>(plan.stages); s-- > 0;) {
    for (size_t route = 1; route < plan.routes.size(); ++route) {
      if (plan.routes[route].ranks[s] == plan.routes[0].ranks[s]) return static_cast<int>(s);
    }
  }
  return -1;
}

}  // namespace

bool SharesStages(const Plan& frame) { return SharedStage(frame) >= 0; }

Plan NumberMicrobatches(Plan plan, const std::vector<int>& number) {
  const auto renumber = [&](auto* microbatch) {
    if (*microbatch >= 0) *microbatch = number[static_cast<size_t>(*microbatch)];
  };
  for (Route& route : plan.routes) {
    for (int& microbatch : route.microbatches) renumber(&microbatch);
    std::ranges::sort(route.microbatches);
  }
  for (Program& program : plan.programs) {
    for (Instruction& i : program) {
      renumber(&i.microbatch);
      renumber(&i.back_microbatch);
    }
  }
  return plan;
}

Plan RenumberMicrobatches(Plan plan) {
  const int stage = SharedStage(plan);
  CF_ASSERT(stage >= 0);
  const auto rank = static_cast<size_t>(plan.routes[0].ranks[static_cast<size_t>(stage)]);
  std::vector<int> number(static_cast<size_t>(plan.microbatches), -1);
  int next = 0;
  for (const Instruction& i : plan.programs[rank]) {
    if (HasWeight(i.op) && BackStage(i) == stage) {
      number[static_cast<size_t>(BackMicrobatch(i))] = next++;
    }
  }
  CF_ASSERT(next == plan.microbatches);
  return NumberMicrobatches(std::move(plan), number);
}

}  // namespace contraflow
