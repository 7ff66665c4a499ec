#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "compiler/plan/cost.h"

namespace contraflow {

/// A directed graph over nodes 0..size-1, given as a list of edges. The only face of Boost.Graph.
struct Digraph {
  struct Edge {
    int from, to;
  };
  int size = 0;
  std::vector<Edge> edges;
};

/// Nodes so that every edge points forward; nothing if the graph has a cycle.
std::optional<std::vector<int>> TopologicalOrder(const Digraph& graph);

/// A cycle with the fewest nodes, in edge order; empty if there is none. O(size * edges): meant for
/// small graphs, such as one node a rank.
std::vector<int> ShortestCycle(const Digraph& graph);

/// Earliest end of every node when it starts after all its predecessors have ended and takes
/// weight[node]; nothing if the graph has a cycle.
std::optional<std::vector<Time>> LongestPath(const Digraph& graph, std::span<const Time> weight);

}  // namespace contraflow
