#pragma once

#include <optional>
#include <span>
#include <vector>

#include "compiler/plan/cost.h"
#include "compiler/verify/checks.h"

namespace contraflow {

using check::Digraph;

/// Nodes so that every edge points forward; nothing if the graph has a cycle.
std::optional<std::vector<int>> TopologicalOrder(const Digraph& graph);

/// Earliest end of every node when it starts after all its predecessors have ended and takes
/// weight[node]; nothing if the graph has a cycle.
std::optional<std::vector<Time>> LongestPath(const Digraph& graph, std::span<const Time> weight);

}  // namespace contraflow
