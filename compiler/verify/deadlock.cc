// Does the plan run to its end? Both checks execute it: each rank goes on until it must wait for
// another, and is taken up again when that one has come as far. The waits of a rank never depend on
// who is faster, so one execution stands for all.
//
// The rendezvous execution has one list a rank, compute and messages in program order, while DESIGN
// section 3 also has an in-order communication queue. The two get stuck alike. Compute never waits
// in the list, so a cycle of waits there is made of messages and reductions only, each after
// another one of its rank: the queue has the same cycle. The other way round, the completion order
// of a list that ends respects the queue, the lane, every producer before its SEND and every RECV
// before its consumer (checks "producer" and "consumer"): it is an execution of queue and lane too.
//
// Data-parallel replicas add nothing: messages stay within a replica, and a cycle of waits through
// REDUCEs of several replicas, with the replica left out, is a cycle of waits of one.

#include <algorithm>
#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <boost/graph/strong_components.hpp>
#include <boost/range/iterator_range.hpp>
#include <tuple>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/verify/checks.h"

namespace contraflow::check {
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

auto IndexMap(const Csr& csr) { return boost::get(boost::vertex_index, csr); }

/// Fewest nodes of a cycle through `start`, if fewer than `limit` (0: no limit); else empty.
std::vector<int> CycleThrough(const Csr& csr, int start, const std::vector<int>& component,
                              size_t limit) {
  constexpr int kUnseen = -1;
  const auto at = [](auto& list, int node) -> auto& { return list[static_cast<size_t>(node)]; };
  std::vector<int> parent(static_cast<size_t>(boost::num_vertices(csr)), kUnseen);
  std::vector<int> wave = {start}, next;
  for (size_t length = 1; !wave.empty() && (limit == 0 || length < limit); ++length) {
    next.clear();
    for (const int node : wave) {
      for (const int to : boost::make_iterator_range(boost::adjacent_vertices(node, csr))) {
        if (to == start) {
          std::vector<int> cycle = {node};
          while (cycle.back() != start) cycle.push_back(at(parent, cycle.back()));
          std::reverse(cycle.begin(), cycle.end());
          return cycle;
        }
        // A cycle never leaves its strong component.
        if (at(component, to) != at(component, start) || at(parent, to) != kUnseen) continue;
        at(parent, to) = node;
        next.push_back(to);
      }
    }
    wave.swap(next);
  }
  return {};
}

/// Names a shortest cycle of waits, and returns it.
std::vector<BlockedAt> ReportCycle(const Tables& tables, std::vector<Wait> waits,
                                   Findings* findings) {
  if (waits.empty()) return {};
  const auto ranks = static_cast<size_t>(tables.plan.ranks);
  const auto key = [](const Wait& wait) { return std::tie(wait.rank, wait.on_rank, wait.index); };
  std::sort(waits.begin(), waits.end(),
            [&](const Wait& a, const Wait& b) { return key(a) < key(b); });
  const auto keep_first = [&](const auto& same) {
    waits.erase(std::unique(waits.begin(), waits.end(), same), waits.end());
  };
  keep_first(
      [](const Wait& a, const Wait& b) { return a.rank == b.rank && a.on_rank == b.on_rank; });
  // The search takes ranks x waits. A plan so wrong that this is much keeps one wait a rank: every
  // waiting rank waits for a waiting one, so there still is a cycle.
  if (ranks * waits.size() > size_t{1} << 28) {
    keep_first([](const Wait& a, const Wait& b) { return a.rank == b.rank; });
  }
  Digraph graph{.size = tables.plan.ranks, .edges = {}};
  for (const Wait& wait : waits) graph.edges.push_back({wait.rank, wait.on_rank});
  const std::vector<int> cycle = ShortestCycle(graph);
  CF_ASSERT(!cycle.empty());
  std::vector<BlockedAt> blocked;
  std::string message;
  int first_index = -1;
  bool messages_only = true;
  for (size_t k = 0; k < cycle.size(); ++k) {
    const int rank = cycle[k], on = cycle[(k + 1) % cycle.size()];
    const auto wait = std::find_if(waits.begin(), waits.end(), [&](const Wait& w) {
      return w.rank == rank && w.on_rank == on;
    });
    blocked.push_back({rank, wait->index, on});
    if (k == 0) {
      first_index = wait->index;
      message = "rank " + std::to_string(rank) + " waits";
    } else {
      message += ", which waits";
    }
    message += " at " + tables.Place(rank, wait->index) + " for rank " + std::to_string(on);
    messages_only &= IsMessage(tables.InstructionAt(rank, wait->index).op);
  }
  message += "; change the order on one of them";
  if (messages_only) message += ", or make the exchange one group on both sides";
  findings->Add(Check::kDeadlock, cycle[0], first_index, message);
  return blocked;
}

/// The first wait of each rank.
std::vector<BlockedAt> FirstWaits(const std::vector<Wait>& waits) {
  std::vector<BlockedAt> first;
  for (const Wait& wait : waits) {
    if (first.empty() || first.back().rank != wait.rank) {
      first.push_back({wait.rank, wait.index, wait.on_rank});
    }
  }
  return first;
}

/// Ranks that can go on.
class ReadyRanks {
 public:
  explicit ReadyRanks(int ranks) {
    for (int r = ranks - 1; r >= 0; --r) ranks_.push_back(r);
  }
  bool empty() const { return ranks_.empty(); }
  void Push(int rank) { ranks_.push_back(rank); }
  int Pop() {
    const int rank = ranks_.back();
    ranks_.pop_back();
    return rank;
  }

 private:
  std::vector<int> ranks_;
};

class DataFlow {
 public:
  DataFlow(const Tables& tables, Findings* findings)
      : tables_(tables),
        plan_(tables.plan),
        findings_(findings),
        next_(static_cast<size_t>(plan_.ranks), 0),
        ready_(plan_.ranks) {}

  Standstill Run() {
    while (!ready_.empty()) Walk(ready_.Pop());
    std::vector<Wait> waits;
    for (int r = 0; r < plan_.ranks; ++r) {
      if (Next(r) < Length(r)) CanRun(r, tables_.InstructionAt(r, Next(r)), &waits);
    }
    Standstill standstill{{next_.begin(), next_.end()}, FirstWaits(waits), {}};
    standstill.cycle = ReportCycle(tables_, std::move(waits), findings_);
    return standstill;
  }

 private:
  int32_t& Next(int rank) { return next_[static_cast<size_t>(rank)]; }
  int32_t Next(int rank) const { return next_[static_cast<size_t>(rank)]; }
  int32_t Length(int rank) const { return static_cast<int32_t>(plan_.program(rank).size()); }

  void Walk(int rank) {
    for (int32_t& next = Next(rank); next < Length(rank); ++next) {
      const Instruction& i = tables_.InstructionAt(rank, next);
      if (!CanRun(rank, i, nullptr)) return;
      WakeConsumers(rank, i);
    }
  }

  /// False if an input comes from another rank that has not made it; notes for which one.
  bool CanRun(int rank, const Instruction& i, std::vector<Wait>* waits) const {
    bool can = true;
    const auto need = [&](int stage, int m, int32_t CellWork::*part) {
      const int producer = tables_.Owner(stage, m);
      const int32_t at = tables_.work[tables_.At(stage, m)].*part;
      // A producer that is missing or too late on this rank is the business of other checks.
      if (producer == rank || at < Next(producer)) return;
      can = false;
      if (waits != nullptr) waits->push_back({rank, Next(rank), producer});
    };
    // Work on the wrong rank, or done again, is the business of other checks too: nobody would wake
    // it, so it waits for nothing.
    const auto placed = [&](int stage, int m, int32_t CellWork::*part) {
      return tables_.Owner(stage, m) == rank &&
             tables_.work[tables_.At(stage, m)].*part == Next(rank);
    };
    if (HasForward(i.op) && i.stage > 0 && placed(i.stage, i.microbatch, &CellWork::f)) {
      need(i.stage - 1, i.microbatch, &CellWork::f);
    }
    const int back = BackStage(i), back_m = BackMicrobatch(i);
    if (HasBackward(i.op) && back + 1 < plan_.stages && placed(back, back_m, &CellWork::b)) {
      need(back + 1, back_m, &CellWork::b);
    }
    return can;
  }

  void WakeConsumers(int rank, const Instruction& i) {
    const auto wake = [&](int stage, int m, int32_t CellWork::*part) {
      const int consumer = tables_.Owner(stage, m);
      const int32_t at = tables_.work[tables_.At(stage, m)].*part;
      if (consumer != rank && at == Next(consumer)) ready_.Push(consumer);
    };
    if (HasForward(i.op) && i.stage + 1 < plan_.stages) {
      wake(i.stage + 1, i.microbatch, &CellWork::f);
    }
    if (HasBackward(i.op) && BackStage(i) > 0) {
      wake(BackStage(i) - 1, BackMicrobatch(i), &CellWork::b);
    }
  }

  const Tables& tables_;
  const Plan& plan_;
  Findings* findings_;
  std::vector<int32_t> next_;  // the instruction each rank is at
  ReadyRanks ready_;
};

class Rendezvous {
 public:
  Rendezvous(const Tables& tables, Findings* findings)
      : tables_(tables),
        plan_(tables.plan),
        findings_(findings),
        ranks_(static_cast<size_t>(plan_.ranks)),
        arrived_(static_cast<size_t>(plan_.stages), 0),
        awaited_(static_cast<size_t>(plan_.stages), 0),
        ready_(plan_.ranks) {
    // A holder without its REDUCE is the business of another check; nobody waits for it here.
    for (const Copy& copy : tables.copies) {
      if (copy.reduce >= 0) ++awaited_[static_cast<size_t>(copy.stage)];
    }
  }

  Standstill Run() {
    while (!ready_.empty()) Walk(ready_.Pop());
    std::vector<Wait> waits;
    Standstill standstill;
    for (int r = 0; r < plan_.ranks; ++r) {
      AddWaits(r, &waits);
      standstill.next.push_back(At(r).begin);
    }
    standstill.waits = FirstWaits(waits);
    standstill.cycle = ReportCycle(tables_, std::move(waits), findings_);
    return standstill;
  }

 private:
  /// A rank stands at [begin, end): a message, a group or a REDUCE that it has posted.
  struct State {
    int32_t begin = 0, end = 0;
    int32_t open = 0;  // how much of it the other side has not posted yet
  };

  State& At(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  const State& At(int rank) const { return ranks_[static_cast<size_t>(rank)]; }

  void Walk(int rank) {
    const auto length = static_cast<int32_t>(plan_.program(rank).size());
    State& state = At(rank);
    while (state.open == 0) {
      state.begin = state.end;
      if (state.begin == length) return;
      const Instruction& i = tables_.InstructionAt(rank, state.begin);
      ++state.end;
      if (IsMessage(i.op)) {
        for (; i.group >= 0 && state.end < length; ++state.end) {
          const Instruction& next = tables_.InstructionAt(rank, state.end);
          if (next.group != i.group || !IsMessage(next.op)) break;
        }
        for (int32_t at = state.begin; at < state.end; ++at) Post(rank, at);
      } else if (i.op == Op::REDUCE) {
        Arrive(rank, i.stage);
      }
    }
  }

  /// A message meets its other side if that is posted; else the other side will find this one.
  void Post(int rank, int32_t at) {
    // Messages without another side are the business of other checks and pass.
    const int32_t partner = Partner(tables_, rank, at);
    if (partner < 0) return;
    const int peer = tables_.InstructionAt(rank, at).peer;
    State& other = At(peer);
    if (partner < other.begin || partner >= other.end) {
      ++At(rank).open;
    } else if (--other.open == 0) {
      ready_.Push(peer);
    }
  }

  void Arrive(int rank, int stage) {
    const auto s = static_cast<size_t>(stage);
    State& state = At(rank);
    if (!IsReduceOf(rank, stage, state.begin)) return;
    ++state.open;
    if (++arrived_[s] < awaited_[s]) return;
    for (const Copy& copy : tables_.CopiesOf(stage)) {
      if (copy.reduce < 0) continue;
      At(copy.rank).open = 0;
      if (copy.rank != rank) ready_.Push(copy.rank);
    }
  }

  bool IsReduceOf(int rank, int stage, int32_t at) const {
    const int32_t copy = tables_.FindCopy(stage, rank);
    return copy >= 0 && tables_.copies[static_cast<size_t>(copy)].reduce == at;
  }

  void AddWaits(int rank, std::vector<Wait>* waits) const {
    const State& state = At(rank);
    if (state.open == 0) return;
    const Instruction& i = tables_.InstructionAt(rank, state.begin);
    if (i.op == Op::REDUCE) return AddReduceWaits(rank, i.stage, waits);
    for (int32_t at = state.begin; at < state.end; ++at) {
      const int32_t partner = Partner(tables_, rank, at);
      const int peer = tables_.InstructionAt(rank, at).peer;
      if (partner >= At(peer).end) waits->push_back({rank, at, peer});
    }
  }

  void AddReduceWaits(int rank, int stage, std::vector<Wait>* waits) const {
    for (const Copy& copy : tables_.CopiesOf(stage)) {
      const State& other = At(copy.rank);
      if (copy.reduce >= other.end) {
        waits->push_back({rank, At(rank).begin, copy.rank});
        if (waits->size() > kEnoughWaits) return;
      }
    }
  }

  // Thousands of ranks at reductions of thousands of holders: the first few million waits do.
  static constexpr size_t kEnoughWaits = size_t{1} << 22;

  const Tables& tables_;
  const Plan& plan_;
  Findings* findings_;
  std::vector<State> ranks_;
  std::vector<int32_t> arrived_, awaited_;  // holders of each stage at their REDUCE
  ReadyRanks ready_;
};

}  // namespace

std::vector<int> ShortestCycle(const Digraph& graph) {
  const Csr csr = MakeCsr(graph);
  std::vector<int> component(static_cast<size_t>(graph.size));
  const auto color = boost::make_iterator_property_map(component.begin(), IndexMap(csr));
  boost::strong_components(csr, color);
  // Nodes in ascending order and only shorter cycles later: the result starts at its smallest node.
  std::vector<int> best;
  for (int node = 0; node < graph.size; ++node) {
    std::vector<int> cycle = CycleThrough(csr, node, component, best.size());
    if (!cycle.empty()) best = std::move(cycle);
  }
  return best;
}

Standstill CheckDataFlow(const Tables& tables, Findings* findings) {
  return DataFlow(tables, findings).Run();
}

Standstill CheckRendezvous(const Tables& tables, Findings* findings) {
  return Rendezvous(tables, findings).Run();
}

}  // namespace contraflow::check
