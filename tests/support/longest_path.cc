#include "tests/support/longest_path.h"

#include <algorithm>
#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <boost/graph/topological_sort.hpp>
#include <boost/range/iterator_range.hpp>
#include <iterator>
#include <utility>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

using Csr = boost::compressed_sparse_row_graph<boost::directedS, boost::no_property,
                                               boost::no_property, boost::no_property, int, int>;

Csr MakeCsr(const Digraph& graph) {
  std::vector<std::pair<int, int>> edges;
  edges.reserve(graph.edges.size());
  for (const Digraph::Edge& edge : graph.edges) {
    CF_ASSERT(edge.from >= 0 && edge.from < graph.size && edge.to >= 0 && edge.to < graph.size);
    edges.emplace_back(edge.from, edge.to);
  }
  return Csr(boost::edges_are_unsorted_multi_pass, edges.begin(), edges.end(), graph.size);
}

std::optional<std::vector<int>> Sorted(const Csr& csr) {
  std::vector<int> order;
  order.reserve(static_cast<size_t>(boost::num_vertices(csr)));
  try {
    boost::topological_sort(csr, std::back_inserter(order));
  } catch (const boost::not_a_dag&) {
    return std::nullopt;
  }
  std::ranges::reverse(order);  // Boost lists every node after its successors
  return order;
}

}  // namespace

std::optional<std::vector<int>> TopologicalOrder(const Digraph& graph) {
  return Sorted(MakeCsr(graph));
}

std::optional<std::vector<Time>> LongestPath(const Digraph& graph, std::span<const Time> weight) {
  CF_ASSERT(weight.size() == static_cast<size_t>(graph.size));
  const Csr csr = MakeCsr(graph);
  const std::optional<std::vector<int>> order = Sorted(csr);
  if (!order) return std::nullopt;
  std::vector<Time> end(weight.size(), 0);  // until its turn: the end of its latest predecessor
  for (const int node : *order) {
    const auto from = static_cast<size_t>(node);
    end[from] += weight[from];
    for (const int to : boost::make_iterator_range(boost::adjacent_vertices(node, csr))) {
      end[static_cast<size_t>(to)] = std::max(end[static_cast<size_t>(to)], end[from]);
    }
  }
  return end;
}

}  // namespace contraflow
