#include "schedules/target.h"

#include <algorithm>

#include "compiler/plan/memory_limit.h"
#include "schedules/compile.h"
#include "schedules/published/rows.h"
#include "schedules/registry.h"
#include "schedules/search/candidates.h"

namespace contraflow {
namespace {

/// Stages a rank that are tried where the spec does not say.
constexpr int kDepths[] = {2, 3, 4, 6, 8};

struct Runs {
  Placement placement;
  const Schedule* schedule;
};

/// Schedules of its own, by placement; none where it runs any plan of one route.
std::vector<Runs> RunsOf(Target target) {
  switch (target) {
    case Target::kMegatron:
      return {{Placement::kLinear, &kOneFOneB},
              {Placement::kInterleaved, &kInterleaved},
              {Placement::kInterleaved, &kCombined}};
    case Target::kDualPipe:
      return {{Placement::kBidirectional, &kDualPipe}, {Placement::kV, &kDualPipeV}};
    case Target::kAny:
    case Target::kTorch:
      break;
  }
  return {};
}

std::string ForTarget(const Spec& spec) { return "`for` " + std::string(Name(spec.target)); }

/// "1f1b, interleaved-1f1b and combined-1f1b"
std::string NamesOf(const std::vector<Runs>& runs) {
  std::string text(runs[0].schedule->name);
  for (size_t i = 1; i < runs.size(); ++i) {
    text += (i + 1 == runs.size() ? " and " : ", ") + std::string(runs[i].schedule->name);
  }
  return text;
}

std::string RejectMemoryWays(const Spec& spec) {
  if (spec.offload.choice != Offload::Choice::kNone) {
    return "cannot have `offload` with " + ForTarget(spec) + ", which does not do it by plan";
  }
  const Recompute::Choice choice = spec.recompute.choice;
  if (spec.target == Target::kMegatron && choice == Recompute::Choice::kStages) {
    return "cannot have a list for `recompute` with " + ForTarget(spec) +
           ", which recomputes all stages or none; give full, none or auto";
  }
  if (spec.target == Target::kMegatron && spec.recompute.part != RecomputePart::kFull) {
    return "cannot have `recompute` " + std::string(Name(spec.recompute.part)) + " with " +
           ForTarget(spec) + ", which recomputes whole stages; give full, none or auto";
  }
  if (spec.target == Target::kDualPipe && choice != Recompute::Choice::kNone) {
    return "cannot have `recompute` with " + ForTarget(spec) + ", which leaves it to the modules";
  }
  return "";
}

std::string RejectSearch(const Spec& spec, const std::vector<Runs>& runs) {
  const Placement asked = spec.search.placement;
  const auto allowed = [&](const Runs& each) { return Allows(asked, each.placement); };
  if (runs.empty() || std::any_of(runs.begin(), runs.end(), allowed)) return "";
  return "has nothing with `placement` " + std::string(Name(asked)) + " that " + ForTarget(spec) +
         " runs: it has " + NamesOf(runs) + ", of `placement` " +
         std::string(Name(runs[0].placement)) + " and " + std::string(Name(runs[1].placement));
}

std::string RejectShape(const Spec& spec) {
  const bool pairs = spec.schedule == kCombined.name;
  if (spec.target != Target::kMegatron || (!pairs && spec.schedule != kInterleaved.name)) return "";
  if (pairs && ParallelOf(spec).ep < 2) {
    return "overlaps pairs, which " + ForTarget(spec) +
           " does only with experts on several devices; give `expert_parallel`";
  }
  if (pairs && spec.recompute.choice == Recompute::Choice::kFull) {
    return "overlaps pairs, which " + ForTarget(spec) +
           " does only where no forward runs again; leave `recompute` out";
  }
  if (spec.ranks == 1) return "has chunks on one rank, which " + ForTarget(spec) + " does not take";
  if (spec.microbatches >= spec.ranks) return "";
  return "has rounds of " + std::to_string(spec.microbatches) + " micro-batches, and " +
         ForTarget(spec) + " takes them of at least P, " + std::to_string(spec.ranks) +
         ", only; give more `microbatches`";
}

/// The limit for another number of stages, where it counts activations.
std::optional<int64_t> LimitOfStages(const Spec& spec, int stages) {
  if (!spec.memory_limit || CountsBytes(spec.costs)) return spec.memory_limit;
  const int own = FindSchedule(spec.schedule).stages(WithStages(spec));
  const int given = spec.limit_stages > 0 ? spec.limit_stages : own;
  return std::max<int64_t>(1, ActivationsOf(*spec.memory_limit, given, stages));
}

}  // namespace

std::string RejectTarget(const Spec& spec) {
  if (spec.target == Target::kAny) return "";
  std::string why = RejectMemoryWays(spec);
  if (!why.empty()) return why;
  const std::vector<Runs> runs = RunsOf(spec.target);
  if (spec.schedule == kAuto.name) {
    if (spec.target == Target::kTorch && spec.search.placement == Placement::kBidirectional) {
      return "has two routes with `placement` bidirectional, and " + ForTarget(spec) +
             " runs plans of one only";
    }
    return RejectSearch(spec, runs);
  }
  const bool two_routes = spec.schedule == kChimera.name || spec.schedule == kDualPipe.name;
  if (spec.target == Target::kTorch) {
    return two_routes ? "has two routes, and " + ForTarget(spec) + " runs plans of one only" : "";
  }
  const auto same = [&](const Runs& each) { return each.schedule->name == spec.schedule; };
  if (std::none_of(runs.begin(), runs.end(), same)) {
    return "is not what " + ForTarget(spec) + " runs: it has " + NamesOf(runs);
  }
  return RejectShape(spec);
}

std::vector<const Schedule*> SchedulesOf(Target target) {
  std::vector<const Schedule*> schedules;
  for (const Runs& each : RunsOf(target)) schedules.push_back(each.schedule);
  return schedules;
}

bool HasFewSpecs(const Spec& spec) {
  if (spec.target != Target::kMegatron && spec.target != Target::kDualPipe) return false;
  return spec.schedule == kAuto.name || spec.recompute.choice == Recompute::Choice::kAuto;
}

std::vector<Spec> TargetSpecs(const Spec& spec) {
  std::vector<Spec> specs;
  if (spec.schedule != kAuto.name) specs.push_back(spec);
  for (const Runs& each : RunsOf(spec.target)) {
    if (spec.schedule != kAuto.name || !Allows(spec.search.placement, each.placement)) continue;
    std::vector<int> depths = {0};
    if (each.schedule->takes_chunks) {
      depths.assign(std::begin(kDepths), std::end(kDepths));
      if (spec.chunks > 0) depths = {spec.chunks};
    }
    for (const int depth : depths) {
      Spec made = spec;
      made.schedule = each.schedule->name;
      made.chunks = depth;
      made.search = {};
      if (!made.partition) made.partition.emplace();
      made.memory_limit = LimitOfStages(spec, each.schedule->stages(made));
      made.limit_stages = 0;
      specs.push_back(std::move(made));
    }
  }
  if (spec.recompute.choice == Recompute::Choice::kAuto) {
    const size_t count = specs.size();
    for (size_t i = 0; i < count; ++i) {
      specs[i].recompute.choice = Recompute::Choice::kNone;
      specs.push_back(specs[i]);
      specs.back().recompute.choice = Recompute::Choice::kFull;
    }
  }
  // Models without experts have no such pairs.
  std::erase_if(specs, [](const Spec& made) {
    return made.schedule == kCombined.name && !RejectShape(made).empty();
  });
  return specs;
}

}  // namespace contraflow
