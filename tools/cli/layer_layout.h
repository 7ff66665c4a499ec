#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/cost.h"
#include "compiler/plan/plan.h"

namespace contraflow {

/// The layers of each stage in data-flow order, one letter each, as Megatron-LM writes them: E the
/// embedding, t a transformer layer, m one of multi-token prediction, L the head with the loss.
/// Source: Megatron-LM, pipeline_parallel_layer_layout.py.
using LayerLayout = std::vector<std::string>;

/// True if the text is a layout and not another form of partition.
bool IsLayerLayout(std::string_view text);

/// Reads "Et*3|(tt|)*29,m|L": a bar between stages, x*n and (..)*n for repeats, which do not nest,
/// and commas for the eye. Reads the same as Megatron-Bridge's lists of names, a list a stage:
/// [["embedding"] + ["decoder"] * 3] + [["decoder"] * 2] * 29 + [["mtp"], ["loss"]]. Throws Error,
/// about `partition`, with what is wrong.
LayerLayout ParseLayerLayout(std::string_view text);

/// The text of a layout, with repeats: what ParseLayerLayout makes the same layout of.
std::string FormatLayerLayout(const LayerLayout& layout);

/// Why Megatron-LM does not take this layout on this many ranks, or "".
std::string FlawOf(const LayerLayout& layout, int ranks);

/// The layers of these names, a letter each. "embedding" and what begins with "embed" is E, "head",
/// "lm_head", "output" and "loss" are L, what begins with "mtp" is m, and all else is t.
std::string LettersOf(const std::vector<NamedLayers>& layers);

/// The layout of a plan whose costs say what layers its stages were made of. Empty where they do
/// not. E and L stand in the first and the last stage where no layer is one.
LayerLayout LayoutOf(const Plan& plan);

/// How many layers of the costs each stage of the layout has; E and L are none where the costs have
/// no such layer. Throws Error, about `partition`, if the layers are others than those of the costs
/// or a stage has none.
Partition PartitionOf(const LayerLayout& layout, const CostModel& costs);

}  // namespace contraflow
