// Times of R and bytes that a cell frees for it: of a whole forward, of some components, of the
// first layers of a stage.

#include "compiler/plan/recompute_cost.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/cost.h"
#include "compiler/plan/error.h"
#include "compiler/plan/value.h"

namespace contraflow {
namespace {

/// Number of a token, as data loaders give it.
constexpr int64_t kBytesOfToken = 8;
constexpr Op kAgain[] = {Op::ATTN_R, Op::MLP_R, Op::DISPATCH_R, Op::COMBINE_R};

/// Time of this much of a forward.
Time TimeOf(const MoeCost& cost, const RecomputeExtent& extent) {
  Time sum = 0;
  for (const Op op : kAgain) {
    for (int l = 0; l < cost.layers_per_stage; ++l) {
      if (extent.Has(op, l, cost.KindOf(l))) sum += cost.Of(Repeated(op), l);
    }
  }
  return sum;
}

/// The first n layers' part of what all layers have.
int64_t ShareOf(int64_t all, std::span<const LayerShare> layers, int first,
                int64_t LayerShare::*share) {
  int64_t part = 0, sum = 0;
  for (size_t l = 0; l < layers.size(); ++l) {
    sum += layers[l].*share;
    if (std::cmp_less(l, first)) part += layers[l].*share;
  }
  if (part == sum) return all;
  if (all == sum) return part;
  const double ratio = static_cast<double>(part) / static_cast<double>(sum);
  return static_cast<int64_t>(std::llround(static_cast<double>(all) * ratio));
}

/// How long the forward of the first layers of a stage takes again; all of it where its layers are
/// not known.
Time TimeOfLayers(const CostModel& costs, int s, const RecomputeExtent& extent) {
  const Time all = costs.stage(s).recompute();
  if (costs.components()) return std::min(all, TimeOf(costs.moe_of(s), extent));
  const std::span<const LayerShare> layers = costs.SharesOf(s);
  return layers.empty() ? all : ShareOf(all, layers, extent.layers, &LayerShare::f);
}

/// Bytes of a cell whose forward runs again in its first layers: it frees all that they hold but
/// the input of the stage.
CellBytes WithoutLayers(const CostModel& costs, int s, int layers, CellBytes bytes) {
  std::span<const LayerShare> shares = costs.SharesOf(s);
  // Layers that have the same values have as many bytes.
  std::vector<LayerShare> alike;
  if (shares.empty() && costs.components()) {
    alike.resize(static_cast<size_t>(costs.moe_of(s).layers_per_stage));
    shares = alike;
  }
  if (shares.empty()) {
    throw Error(
        "the costs do not say which layers stage " + std::to_string(s) +
        " has, so that R of its first ones has no bytes; give \"layers\", of the stage their "
        "number or of the model their costs");
  }
  const auto first = [&](int64_t all) {
    return ShareOf(all, shares, layers, &LayerShare::activation_bytes);
  };
  const int64_t dropped = std::max<int64_t>(0, first(bytes.activation) - bytes.input);
  bytes.input = bytes.activation - dropped;
  // The rest takes as much as there is, and no more than is kept.
  const int64_t least = std::max<int64_t>(0, bytes.stash - dropped);
  bytes.kept_stash =
      std::clamp(bytes.stash - first(bytes.stash), least, std::min(bytes.stash, bytes.input));
  return bytes;
}

/// Bytes that a cell frees whose forward runs again in this part only: those that these components
/// make for the backward.
int64_t DroppedBytes(const CostModel& costs, int s, const RecomputeExtent& extent) {
  if (!costs.knows_parts()) {
    throw Error("`recompute` " + std::string(Name(extent.part)) + ": `costs`: " +
                (costs.components() ? "/memory: has no \"values\", which say"
                                    : "has no \"moe\" and no \"values\" in \"memory\", which say") +
                " what the parts of a layer hold; give costs that do, a `model`, or `recompute` "
                "full or auto");
  }
  const MoeCost& moe = costs.moe_of(s);
  int64_t dropped = 0;
  for (int l = 0; l < moe.layers_per_stage; ++l) {
    const auto again = [&](Op op, int layer) {
      return layer >= 0 && extent.Has(op, layer, moe.KindOf(layer));
    };
    const auto add = [&](std::initializer_list<Value> made) {
      for (const Value v : made) {
        const auto at = static_cast<size_t>(v);
        dropped += moe.values.empty() ? costs.memory->values[at] : moe.ValuesOf(l)[at];
      }
    };
    if (again(Op::ATTN_R, l)) add({Value::attention, Value::scores});
    if (again(Op::DISPATCH_R, l)) add({Value::rows});
    if (again(Op::MLP_R, l)) add({Value::gate, Value::hidden});
    if (again(Op::COMBINE_R, l)) add({Value::combined});
    // The input of a layer after the first is what COMBINE_R makes.
    if (again(Op::DISPATCH_R, l) && again(Op::COMBINE_R, l - 1)) add({Value::input});
  }
  return dropped;
}

}  // namespace

bool CostModel::knows_parts() const {
  if (!components()) return false;
  if (memory && !memory->values.empty()) return true;
  const auto plain = [](LayerKind kind) { return kind == LayerKind::kPlain; };
  const auto says = [&](const MoeCost& stage) {
    return !stage.values.empty() ||
           (!stage.kinds.empty() && std::ranges::all_of(stage.kinds, plain));
  };
  return moe ? says(*moe) : std::ranges::all_of(stage_moe, says);
}

bool HasSome(const CostModel& costs, int s, const RecomputeExtent& extent) {
  if (extent.part == RecomputePart::kFull || !costs.components()) return true;
  const MoeCost& moe = costs.moe_of(s);
  for (int l = 0; l < moe.layers_per_stage; ++l) {
    const auto again = [&](Op op) { return extent.Has(op, l, moe.KindOf(l)); };
    if (std::ranges::any_of(kAgain, again)) return true;
  }
  return false;
}

Time RecomputeTime(const CostModel& costs, int s, const RecomputeExtent& extent) {
  if (extent.part != RecomputePart::kFull && costs.components()) {
    return TimeOf(costs.moe_of(s), extent);
  }
  return extent.layers != 0 ? TimeOfLayers(costs, s, extent) : costs.stage(s).recompute();
}

std::span<const LayerShare> CostModel::SharesOf(int s) const {
  if (shares.empty()) return {};
  return shares.size() == 1 ? shares[0] : shares[static_cast<size_t>(s)];
}

int CostModel::LayersIn(int s) const {
  if (components()) return moe_of(s).layers_per_stage;
  return static_cast<int>(SharesOf(s).size());
}

std::optional<int64_t> InputBytes(const CostModel& costs, int s) {
  const auto part = [&](int64_t bytes) {
    return costs.memory ? std::min(bytes, costs.memory->activation(s)) : bytes;
  };
  if (costs.memory && costs.memory->input_bytes >= 0) return part(costs.memory->input_bytes);
  if (costs.memory && !costs.memory->values.empty()) {
    return part(costs.memory->values[static_cast<size_t>(Value::input)]);
  }
  if (costs.comm.bytes == 0) return std::nullopt;
  if (s == 0 && costs.tokens > 0) return part(kBytesOfToken * costs.tokens);
  return part(costs.comm.SizeBetween(s - 1).bytes);
}

CellBytes BytesOfCell(const CostModel& costs, int s, bool recomputes,
                      const RecomputeExtent& extent) {
  if (!costs.memory || costs.memory->activation_bytes == 0) return {};
  CellBytes bytes = {.activation = costs.memory->activation(s), .stash = costs.memory->stash(s)};
  if (!recomputes) {
    bytes.input = bytes.activation;
    return bytes;
  }
  if (extent.part != RecomputePart::kFull) {
    bytes.input = std::max<int64_t>(0, bytes.activation - DroppedBytes(costs, s, extent));
  } else {
    const std::optional<int64_t> input = InputBytes(costs, s);
    if (!input) {
      throw Error(
          "the costs do not say what a recomputed cell holds between F and R, its stage input; "
          "give " +
          MemoryKeys(costs, {"input_bytes"}) + ", or \"bytes\" under \"comm\"");
    }
    bytes.input = *input;
    if (extent.layers != 0) return WithoutLayers(costs, s, extent.layers, bytes);
  }
  bytes.kept_stash = std::max<int64_t>(0, bytes.input - (bytes.activation - bytes.stash));
  return bytes;
}

}  // namespace contraflow
