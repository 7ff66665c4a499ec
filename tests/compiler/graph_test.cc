#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "compiler/verify/checks.h"
#include "tests/support/longest_path.h"
#include "tests/support/sanitized.h"

namespace contraflow::graph_test {
namespace {

using check::ShortestCycle;
using Edge = Digraph::Edge;

Digraph RandomGraph(std::mt19937_64* random, int size, int edges, bool forward_only) {
  std::uniform_int_distribution<int> node(0, size - 1);
  Digraph graph{.size = size, .edges = {}};
  for (int k = 0; k < edges; ++k) {
    Edge edge{node(*random), node(*random)};
    if (forward_only && edge.from >= edge.to) continue;
    graph.edges.push_back(edge);
  }
  return graph;
}

/// Length of a shortest cycle, by all-pairs distances; 0 if there is none.
int ShortestCycleLength(const Digraph& graph) {
  constexpr int kFar = 1 << 20;
  const auto n = static_cast<size_t>(graph.size);
  std::vector<std::vector<int>> distance(n, std::vector<int>(n, kFar));
  for (const Edge& edge : graph.edges) {
    distance[static_cast<size_t>(edge.from)][static_cast<size_t>(edge.to)] = 1;
  }
  for (size_t k = 0; k < n; ++k) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        distance[i][j] = std::min(distance[i][j], distance[i][k] + distance[k][j]);
      }
    }
  }
  int best = kFar;
  for (size_t i = 0; i < n; ++i) best = std::min(best, distance[i][i]);
  return best == kFar ? 0 : best;
}

bool HasEdge(const Digraph& graph, int from, int to) {
  return std::ranges::any_of(graph.edges,
                             [&](const Edge& e) { return e.from == from && e.to == to; });
}

TEST_SUITE("unit") {
  TEST_CASE("graphs by hand") {
    const Digraph empty;
    CHECK(TopologicalOrder(empty)->empty());
    CHECK(ShortestCycle(empty).empty());
    CHECK(LongestPath(empty, {})->empty());

    const Digraph diamond{.size = 4, .edges = {{3, 1}, {3, 2}, {1, 0}, {2, 0}}};
    const std::vector<int> order = TopologicalOrder(diamond).value();
    CHECK(order.front() == 3);
    CHECK(order.back() == 0);
    CHECK(ShortestCycle(diamond).empty());
    const std::vector<Time> weight = {1, 10, 20, 5};
    CHECK(LongestPath(diamond, weight).value() == std::vector<Time>{26, 15, 25, 5});

    // A long cycle, a shorter one off it, and a node that leads in.
    const Digraph cycles{.size = 6,
                         .edges = {{5, 0}, {0, 1}, {1, 2}, {2, 3}, {3, 0}, {2, 4}, {4, 2}}};
    CHECK(ShortestCycle(cycles) == std::vector<int>{2, 4});
    CHECK_FALSE(TopologicalOrder(cycles).has_value());
    CHECK_FALSE(LongestPath(cycles, std::vector<Time>(6, 1)).has_value());
    CHECK(ShortestCycle({.size = 2, .edges = {{0, 1}, {1, 1}}}) == std::vector<int>{1});
    CHECK(ShortestCycle({.size = 3, .edges = {{2, 1}, {1, 0}, {0, 2}}}) ==
          std::vector<int>{0, 2, 1});
  }

  TEST_CASE("a chain of a million nodes is no trouble") {
    constexpr int kSize = 1'000'000;
    Digraph chain{.size = kSize, .edges = {}};
    for (int node = 0; node + 1 < kSize; ++node) chain.edges.push_back({node, node + 1});
    CHECK(LongestPath(chain, std::vector<Time>(kSize, 1)).value().back() == kSize);
  }
}

TEST_SUITE("property") {
  TEST_CASE("random graphs: orders are orders cycles are shortest both against brute force") {
    std::mt19937_64 random(11);
    int cyclic = 0;
    for (int round = 0; round < CasesToDraw(1000); ++round) {
      const int size = 1 + round % 12;
      const Digraph graph = RandomGraph(&random, size, size + round % 7, round % 3 == 0);
      CAPTURE(round);
      const std::vector<int> cycle = ShortestCycle(graph);
      CHECK(static_cast<int>(cycle.size()) == ShortestCycleLength(graph));
      for (size_t k = 0; k < cycle.size(); ++k) {
        CHECK(HasEdge(graph, cycle[k], cycle[(k + 1) % cycle.size()]));
        CHECK(cycle[k] >= cycle[0]);
      }
      const auto order = TopologicalOrder(graph);
      CHECK(order.has_value() == cycle.empty());
      cyclic += !cycle.empty();
      std::vector<Time> weight;
      for (int node = 0; node < size; ++node) weight.push_back((node * 7) % 5);
      const auto end = LongestPath(graph, weight);
      CHECK(end.has_value() == cycle.empty());
      if (!order) continue;
      REQUIRE(order->size() == static_cast<size_t>(size));
      std::vector<Time> expected(static_cast<size_t>(size), 0);
      std::vector<bool> done(static_cast<size_t>(size), false);
      for (const int node : *order) {
        const auto at = static_cast<size_t>(node);
        CHECK_FALSE(done[at]);
        done[at] = true;
        for (const Edge& edge : graph.edges) {
          if (edge.to != node) continue;
          CHECK(done[static_cast<size_t>(edge.from)]);
          expected[at] = std::max(expected[at], expected[static_cast<size_t>(edge.from)]);
        }
        expected[at] += weight[at];
      }
      CHECK(*end == expected);
    }
    CHECK((kSanitized || cyclic > 200));
    CHECK(cyclic < 800);
  }
}

}  // namespace
}  // namespace contraflow::graph_test
