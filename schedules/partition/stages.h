#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "compiler/plan/cost.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"

namespace contraflow {

/// Costs of stages that are made of the layers of a model.
class LayerStages {
 public:
  /// `costs` has layers.
  LayerStages(const CostModel& costs, Overlap overlap);

  bool AreOf(const CostModel& costs, Overlap overlap) const {
    return costs_ == costs && overlap_ == overlap;
  }

  int layers() const { return static_cast<int>(kinds_.size()); }
  /// Which entry of CostModel::layers the i-th layer is.
  int kind(int i) const { return kinds_[static_cast<size_t>(i)]; }

  /// Cost of a stage with the layers first..last-1: f, b and w are sums over them. If they have
  /// components, bw and fb are what DeriveChunkCosts makes of these soon; of many layers, of rows
  /// of at most 24 of them, one after another.
  const StageCost& CostOf(int first, int last);

  /// Costs with these stages in place of the layers: what each costs and holds, and messages as
  /// large as the largest output of a layer that a stage ends with. The layers of the partition
  /// must add up to those of the model.
  CostModel Make(const Partition& partition);

  /// The components of the layers of each stage, for costs that Make gives; a layer without has one
  /// each for F, B and W.
  std::vector<MoeCost> ComponentsOf(const Partition& partition) const;

  /// Sums over the layers before the i-th, 0..layers(), in ticks: without what overlap saves.
  Time forward_before(int i) const { return sums_[static_cast<size_t>(i)].f; }
  Time backward_before(int i) const { return sums_[static_cast<size_t>(i)].b; }
  Time work_before(int i) const { return sums_[static_cast<size_t>(i)].work; }
  /// The least that a compute lane is busy with them, whatever overlaps.
  Time least_work_before(int i) const { return sums_[static_cast<size_t>(i)].least; }

  /// Costs of one stage alone, with the layers first..last-1.
  CostModel Segment(int first, int last);

 private:
  struct Sums {
    Time f = 0, b = 0, work = 0, least = 0;
  };
  const LayerCost& Layer(int i) const {
    return costs_.layers[static_cast<size_t>(kinds_[static_cast<size_t>(i)])];
  }
  /// The layer that this one shares its parameters with, if that is in no such stage: then this one
  /// needs a copy.
  const LayerCost* SharedElsewhere(const LayerCost& layer, int first, int last) const;
  /// Costs of stages with the layers first..second-1.
  CostModel Of(const std::vector<std::pair<int, int>>& segments);
  StageCost Overlapped(const std::vector<int>& kinds) const;

  const CostModel costs_;
  const Overlap overlap_;
  std::vector<int> kinds_;  // entry of costs_.layers, by layer
  std::vector<int> alike_;  // the first entry with the same times, by layer
  std::vector<Sums> sums_;
  std::map<std::vector<int>, StageCost> known_;  // by the kinds of the layers
};

/// Throws Error if a stage that was made of layers has more bytes of a kind than a plan may say.
void CheckBytes(const CostModel& made);

/// True if some layer has an all-to-all that takes time.
bool HasAllToAlls(const std::vector<LayerCost>& layers);

/// Costs with the stages of a plan in place of the layers: by the plan's own partition, else an
/// even one; for a plan of components with those of the layers or, where all its stages are alike,
/// as AlikeStages has it. Throws Error if the layers are not
/// those that the plan was made for.
CostModel StagesForPlan(const CostModel& costs, const Plan& plan, Overlap overlap);

/// Costs that list the stages a plan was made of, with the stages of the plan: `auto` has cut or
/// merged those of its costs (Provenance::cost_stages), else fewer than the plan's are cut. Costs
/// of other numbers of stages stay as they are, as do those that cannot be cut.
CostModel CutForPlan(const CostModel& costs, const Plan& plan);

/// True if the layer has components with all-to-alls.
bool IsMoe(const LayerCost& layer);

/// True if some layer has components.
bool HasComponents(const std::vector<LayerCost>& layers);

/// True if stages of these layers have the times and bytes of their parts (CostModel::knows_parts).
bool KnowParts(const CostModel& costs);

/// Gives costs that were made of the layers in this partition (LayerStages::Make) the components
/// of their stages.
void AddComponents(const LayerStages& layers, const Partition& partition, Overlap overlap,
                   CostModel* made);

/// Leaves out of costs that were made of layers what no instruction of the plan goes by; with
/// `components` it has those.
void LeaveOutUnused(const Plan& plan, bool components, CostModel* made);

/// The same model with what is before its first layer with components as part of that, and what is
/// after the last one as part of that: how contraflow-run computes embedding and head. Throws
/// Error if no layer has components, or one in between has none.
CostModel FoldEnds(const CostModel& costs);

/// Costs with this many stages in place of the layers, for a plan of components whose stages are
/// alike: as many layers with components in each, and what the layers before and after those take
/// (embedding, head) spread over all stages. Throws Error unless the layers with components are
/// alike and divide.
CostModel AlikeStages(const CostModel& costs, int stages, Overlap overlap);

/// Why the layers cannot become this many stages as the choice says, or "".
std::string RejectPartition(const CostModel& costs, const PartitionChoice& choice, int stages);

/// Equally many layers in each stage; the first ones have one more where that does not divide.
Partition EvenPartition(int layers, int stages);

}  // namespace contraflow
