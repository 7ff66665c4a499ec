// Placements and depths of a spec with costs of layers.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "schedules/auto/auto.h"
#include "schedules/auto/shape.h"
#include "schedules/partition/made_plans.h"
#include "schedules/partition/partition.h"
#include "schedules/partition/staged.h"
#include "schedules/published/rows.h"
#include "schedules/recompute/recompute.h"
#include "schedules/search/candidates.h"
#include "schedules/search/portfolio.h"

namespace contraflow {
namespace {

/// Ways that the depth of an interleaved placement is tried.
constexpr int kDepths[] = {2, 3, 4, 5, 6, 8};
/// And of a wave. Even ones end where they began; three depths take longer than they gain.
constexpr int kWaves[] = {4, 8};

/// A placement and depth to search, simplest first.
struct PlacementDepth {
  Placement placement;
  int chunks = 1;
};

/// True if copies sum gradients in time that a rank with several stages computes in.
bool SumsGradients(const Spec& spec) {
  return (spec.data_parallel > 1 || ParallelOf(spec).ep > 1) &&
         std::ranges::any_of(spec.costs.layers,
                             [](const LayerCost& layer) { return layer.cost.reduce > 0; });
}

std::vector<PlacementDepth> DepthsOf(const Spec& spec) {
  const Placement asked = spec.search.placement;
  const int deepest = spec.costs.LayerCount() / spec.ranks;
  std::vector<PlacementDepth> shapes;
  const auto offer = [&](Placement placement, int chunks) {
    if (!Allows(asked, placement)) return;
    if (chunks > deepest) return;
    // On one rank, parts of its layers run again one after the other, or overlap.
    const bool parts = placement == Placement::kInterleaved &&
                       (HoldsLess(spec) || HasAllToAlls(spec.costs.layers) || SumsGradients(spec));
    if (IsChoice(asked) && chunks > 1 && spec.ranks == 1 && !parts) return;
    if (placement == Placement::kBidirectional &&
        (spec.microbatches < 2 || (IsChoice(asked) && spec.ranks == 1))) {
      return;
    }
    const int64_t stages = int64_t{chunks} * spec.ranks;
    if (stages > kMaxStages || stages * spec.microbatches > kMaxCells) return;
    const PartitionChoice choice = ChoiceOf(spec);
    if (choice.kind == PartitionChoice::Kind::kList &&
        !RejectPartition(spec.costs, choice, static_cast<int>(stages)).empty()) {
      return;
    }
    shapes.push_back({placement, chunks});
  };
  offer(Placement::kLinear, 1);
  offer(Placement::kV, 2);
  if (spec.chunks > 0) {
    offer(Placement::kInterleaved, spec.chunks);
  } else {
    for (const int chunks : kDepths) offer(Placement::kInterleaved, chunks);
  }
  if (spec.chunks > 2) {
    offer(Placement::kWave, spec.chunks);
  } else if (spec.chunks == 0) {
    for (const int chunks : kWaves) offer(Placement::kWave, chunks);
  }
  offer(Placement::kBidirectional, 1);
  return shapes;
}

/// The spec of a depth, still with its layers.
Spec OfDepth(const Spec& spec, const PlacementDepth& depth) {
  Spec of = spec;
  of.search.placement = depth.placement;
  of.chunks = depth.chunks;
  SetLimitFor(spec, spec.ranks * depth.chunks, &of);
  of.search.budget = 0;  // The work of a run says how much is left.
  return of;
}

/// Throws Error if the costs do not say what recompute and offloading of the spec need to know.
void CheckBought(const Spec& spec, LayerStages* layers) {
  Spec even = spec;
  even.costs = ChunkCosts(spec, layers, EvenPartition(layers->layers(), spec.ranks));
  if (spec.recompute.choice != Recompute::Choice::kNone) CheckRecomputeLimit(even);
  CheckHostCost(even.costs, spec.offload.choice != Offload::Choice::kNone);
}

/// Throws the Error that says why there is no depth for the spec.
[[noreturn]] void RefuseDepths(const Spec& spec) {
  RequirePartition(kAuto, spec, spec.ranks);
  if (spec.search.placement == Placement::kWave && spec.chunks > 0) {
    if (const std::string why = RejectWave(spec.chunks); !why.empty()) throw Error("auto " + why);
  }
  throw Error("auto has no such placement of " + std::to_string(spec.costs.LayerCount()) +
              " layers on " + std::to_string(spec.ranks) +
              " ranks; give another `placement` or `chunks`");
}

}  // namespace

std::vector<std::unique_ptr<Shape>> LayerShapes(const Spec& spec, const SearchControl& control,
                                                Incumbent* incumbent) {
  const std::vector<PlacementDepth> depths = DepthsOf(spec);
  if (depths.empty()) RefuseDepths(spec);
  LayerStages& layers = control.made->StagesOf(spec.costs, OverlapOf(spec));
  CheckBought(spec, &layers);
  std::vector<std::unique_ptr<Shape>> shapes;
  for (const Spec& way : WithoutAndWith(spec)) {
    for (const PlacementDepth& depth : depths) {
      // Another shape may have a limit that this one cannot have.
      incumbent->Attempt([&] { AddLayerShapes(OfDepth(way, depth), &layers, &shapes); });
    }
  }
  return shapes;
}

}  // namespace contraflow
