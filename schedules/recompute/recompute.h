#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "compiler/plan/plan.h"
#include "schedules/published/schedule.h"
#include "schedules/search/work.h"

namespace contraflow {

/// A stage that is recomputed, and how much of it.
struct RecomputedStage {
  int stage = 0;
  RecomputeExtent extent = {};

  bool operator==(const RecomputedStage&) const = default;
};

/// The plan of a compute order with an R directly before the B, BW or FB of every chunk of these
/// stages (ascending). None of them may have one yet.
Plan RecomputeStages(Plan plan, const std::vector<RecomputedStage>& stages);
/// Like RecomputeStages, of as much of each.
Plan InsertRecompute(Plan plan, const std::vector<int>& stages, const RecomputeExtent& extent = {});

/// How a free choice may take stages: all of their layers or none, or as few of the first ones as
/// it takes, where the costs know them.
enum class Grain : uint8_t { kStages, kLayers };

/// The stages of which to recompute this part makes every rank of a compute order hold at most
/// `limit` bytes, as Spec::memory_limit counts them, for the least time of R that some choice on
/// one rank after the other takes (where a rank has many choices, nearly the least). If all stages
/// are too few, those that save most.
std::vector<RecomputedStage> StagesToFit(const Plan& plan, const CostModel& costs, int64_t limit,
                                         RecomputePart part = RecomputePart::kFull,
                                         Grain grain = Grain::kStages);

/// The stages that the spec recomputes of an order, ascending. Throws Error if some, or some of
/// their layers, do not exist.
std::vector<RecomputedStage> StagesToRecompute(const Plan& order, const Spec& spec,
                                               Grain grain = Grain::kLayers);

/// Stages that the spec names; where the choice is free, all of them.
std::vector<RecomputedStage> MostRecomputed(int stages, const Spec& spec);

/// The same part of the model in other stages: they are cut evenly, or merged if one of them is
/// recomputed. Throws Error if some of the stages do not exist, or if layers of single stages have
/// no counterpart.
Recompute RepartitionRecompute(Recompute recompute, int from, int to);

/// The compute order with every R that holds up its backward in idle time before that, where there
/// is some that is long enough, and as long as that makes the step shorter. No rank comes to hold
/// more than `limit` by it, or, without one, more than the fullest rank does as it is.
Plan HoistRecompute(Plan plan, const CostModel& costs, std::optional<int64_t> limit);

/// Most that R may make a rank hold where the spec has no memory limit: no more than the fullest
/// rank of the order, or anything.
enum class Room : uint8_t { kOfOrder, kAny };

/// This compute order with the recompute of the spec, which may be one of no stages: R put in and
/// hoisted. Throws as GenerateRecomputed.
Plan RecomputeOrder(const Plan& order, const Spec& spec, Room room, Grain grain = Grain::kLayers);

/// The compute order of a row of the table for the spec, as it is without recompute. Throws Error
/// if the row rejects the spec, or if the costs do not fit it.
Plan GenerateOrder(const Schedule& schedule, const Spec& spec);

/// Makes a compute order for a spec without recompute; throws Error if there is none.
using OrderMaker = std::function<Plan(const Spec&)>;

/// Side results of automatic recompute: other plans of the same orders.
struct RecomputeAlternatives {
  std::optional<Plan> full;    ///< its value if all were asked for
  std::optional<Plan> layers;  ///< the shortest with as few layers as it takes; none if not known
};

/// The plan with the recompute of the spec: of the orders of this many stages that `make` gives for
/// the limit, for none and, unless they are `searched`, for costs that have R in the backward, the
/// one with the shortest step that fits, or, where none does, the one that holds least. With
/// `alternatives`, single layers are for that alone. Spends `work`, if there is some. Throws Error
/// if the stages do not exist, or if there is a memory limit and the costs give no bytes.
Plan GenerateRecomputed(const Spec& spec, int stages, Room room, bool searched,
                        const OrderMaker& make, SearchWork* work = nullptr,
                        RecomputeAlternatives* alternatives = nullptr);

/// True where the costs say that a stage has several layers.
bool KnowsLayers(const CostModel& costs);

/// Throws Error unless a memory limit can be read with recompute: where the costs give no bytes it
/// counts activations, and an input is none.
void CheckRecomputeLimit(const Spec& spec);

}  // namespace contraflow
