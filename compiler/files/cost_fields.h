#pragma once

// Fields that costs by stage and costs by layer share.

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "compiler/files/cost_io.h"
#include "compiler/files/json.h"
#include "compiler/plan/cost.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/value.h"

namespace contraflow {

/// Bytes of one activation, message or copy of a stage: a terabyte.
inline constexpr int64_t kMaxBytes = int64_t{1} << 40;

/// A cost >= 0, in ticks.
Time ReadTime(const JsonCursor& field, Unit unit);
Time ReadTime(const std::optional<JsonCursor>& field, Unit unit, Time absent);
/// A number of bytes from `least` to `most`, or one with a unit, "80GB".
int64_t ReadBytes(const JsonCursor& field, int64_t least = 0, int64_t most = kMaxBytes);

/// "f", "b", "w" and, unless they follow from these, "bw", "fb", "reduce", "step" and "r" of an
/// object that may have other keys, too. With `mending`, b and w may follow from "bw".
StageCost ReadStageCost(const JsonCursor& stage, Unit unit, CostMending* mending);
Json StageToJson(const StageCost& cost, Unit unit);

Json ParallelToJson(const Parallel& parallel);

/// The layers of a stage, a letter each.
StageLayers ReadStageLayers(const JsonCursor& field);

/// The components of this many layers ("attn_f" ..), each one number or a list. With `kinds`, those
/// that no layer has may be left out.
MoeCost ReadComponents(const JsonCursor& moe, Unit unit, int layers, const StageLayers& kinds);
void AddComponents(const MoeCost& moe, Unit unit, Json* object);

/// Bytes of what a layer holds, by Value; those that are not given have none. With `layers` each
/// may be a list with one entry for each of this many.
std::vector<ValueBytes> ReadValues(const JsonCursor& values, int layers = 0);
/// Bytes that a layer with these values holds from F to the end of B, and the part of them held to
/// the end of W.
std::pair<int64_t, int64_t> ActivationOf(std::span<const int64_t> values);
Json ValuesToJson(const std::vector<ValueBytes>& values);

/// A number of bytes for every stage alike, or a list with one for each.
std::vector<int64_t> ReadStageBytes(const std::optional<JsonCursor>& field);
/// "zero" and "workspace_bytes", which are known without stages.
void ReadSharing(const JsonCursor& memory, MemoryCost* cost);
/// "memory" of costs by stage. Activations may follow from the values of layers with components.
MemoryCost ReadMemory(const JsonCursor& memory, const std::optional<MoeCost>& moe);

/// The layers of a model: an array of objects with "name", "repeat", a cost or components, and
/// bytes.
std::vector<LayerCost> ReadLayers(const JsonCursor& layers, Unit unit, CostMending* mending);
Json LayersToJson(const std::vector<LayerCost>& layers, Unit unit);

}  // namespace contraflow
