// Activations that a forward keeps can wait for its backward in the memory of the host
// (PipeOffload, arXiv 2503.01328). The link copies during the compute lane, so this costs no time
// as long as it keeps up. Ranks share neither memory nor link: each is looked at alone, in the
// times of the order as it is. OFFLOAD begins when F has ended. All that takes memory after it
// waits for it, so it stands after all that begins before it has ended. RELOADs are laid from the
// last backward to the first, each as late as its backward and the RELOAD after it allow. Limits
// hold by the order of the program alone, however long copies take.

#include "schedules/recompute/offload.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/plan/rank_memory.h"
#include "compiler/simulate/simulate.h"

namespace contraflow {
namespace {

constexpr size_t kNone = std::numeric_limits<size_t>::max();

/// One rank of an order, and which of its cells go to the host.
class RankOffload {
 public:
  RankOffload(const Program& program, const std::vector<Span>& spans, const CostModel& costs,
              const RecomputedCells& recomputed, const std::vector<CellBytes>& cells)
      : program_(program), spans_(spans) {
    const bool in_bytes = MemoryLimit(costs).bytes();
    std::map<std::pair<int, int>, size_t> cell_of;  // by stage and micro-batch
    const auto bytes_of = [&](int stage) {
      return in_bytes ? cells[static_cast<size_t>(stage)] : kOneActivation;
    };
    for (size_t at = 0; at < program.size(); ++at) {
      const Instruction& i = program[at];
      const CellBytes own = bytes_of(i.stage);
      const bool again = HasForward(i.op) && recomputed.Has(i.stage, i.microbatch);
      taken_.push_back(Taken(i.op, own));
      given_.push_back(Given(i.op, own, bytes_of(BackStage(i)), again));
      if (HasForward(i.op) || i.op == Op::R) takers_.push_back(at);
      if (HasForward(i.op)) {
        cell_of[{i.stage, i.microbatch}] = cells_.size();
        const Time copy = costs.Duration(CellOp(Op::OFFLOAD, i.stage, i.microbatch));
        cells_.push_back({.f = at, .copy = copy, .bytes = own.activation, .fixed = again});
      }
      if (HasBackward(i.op)) cells_[cell_of.at({BackStage(i), BackMicrobatch(i)})].b = at;
    }
    for (size_t c = 0; c < cells_.size(); ++c) by_backward_.push_back(c);
    std::sort(by_backward_.begin(), by_backward_.end(),
              [&](size_t a, size_t b) { return cells_[a].b < cells_[b].b; });
  }

  size_t size() const { return cells_.size(); }
  int stage(size_t cell) const { return program_[cells_[cell].f].stage; }
  /// How long it waits for its backward.
  Time Wait(size_t cell) const { return spans_[cells_[cell].b].start - spans_[cells_[cell].f].end; }

  /// Offloads the cell as well, unless the links do not keep up then.
  bool Add(size_t cell) {
    Cell& c = cells_[cell];
    if (c.fixed || c.away || 2 * c.copy > Wait(cell)) return false;
    c.away = true;
    if (Lay()) return true;
    c.away = false;
    CF_ASSERT(Lay());
    return false;
  }

  /// Offloads until the rank holds no more than the limit; false if it does not come to that.
  bool Fit(int64_t limit) {
    for (;;) {
      const std::optional<Place> over = FirstOver(limit);
      if (!over) return true;
      if (!AddFor(*over)) return false;
    }
  }

  /// The same without regard to time: copies stand where memory is needed, and what follows waits.
  void Squeeze(int64_t limit);

  Program Run() const {
    Program program;
    auto copy = copies_.begin();
    for (size_t at = 0; at < program_.size(); ++at) {
      for (; copy != copies_.end() && copy->place.at == at; ++copy) {
        const Instruction& f = program_[cells_[copy->cell].f];
        program.push_back(CellOp(copy->op, f.stage, f.microbatch));
      }
      program.push_back(program_[at]);
    }
    return program;
  }

 private:
  /// Place in the order of copies: before an instruction and, of those there, by time.
  struct Place {
    size_t at = 0;
    Time time = 0;  // of OFFLOAD its end, of RELOAD its latest start

    auto operator<=>(const Place&) const = default;
  };
  struct Cell {
    size_t f, b = kNone;  // instructions
    Time copy;
    int64_t bytes;
    bool fixed;  // recomputed: it holds its input alone anyway
    bool away = false;
    Place offload = {}, reload = {};  // if it is
  };
  struct Copy {
    Place place;
    Op op;
    size_t cell;
  };

  /// Gives all that is away its places; false if something is not back in time.
  bool Lay() {
    copies_.clear();
    Time latest = std::numeric_limits<Time>::max();
    for (auto number = by_backward_.rbegin(); number != by_backward_.rend(); ++number) {
      Cell& c = cells_[*number];
      if (!c.away) continue;
      latest = std::min(latest, spans_[c.b].start) - c.copy;
      // It begins when what stands before it has ended: after the last that has by then.
      const auto later =
          std::partition_point(spans_.begin(), spans_.begin() + static_cast<std::ptrdiff_t>(c.b),
                               [latest](const Span& span) { return span.end <= latest; });
      c.reload = {static_cast<size_t>(later - spans_.begin()), latest};
      copies_.push_back({c.reload, Op::RELOAD, *number});
    }
    std::reverse(copies_.begin(), copies_.end());
    const std::vector<Copy> reloads = copies_;
    Time end = 0;
    for (size_t number = 0; number < cells_.size(); ++number) {
      Cell& c = cells_[number];
      if (!c.away) continue;
      end = std::max(end, spans_[c.f].end) + c.copy;
      // All that takes memory after OFFLOAD waits for it: it stands after all that must not wait.
      size_t at = c.f + 1;
      const auto taker = std::partition_point(takers_.begin(), takers_.end(),
                                              [&](size_t t) { return spans_[t].start < end; });
      if (taker != takers_.begin()) at = std::max(at, *(taker - 1) + 1);
      const auto reload =
          std::partition_point(reloads.begin(), reloads.end(),
                               [&](const Copy& other) { return other.place.time < end; });
      if (reload != reloads.begin()) at = std::max(at, (reload - 1)->place.at);
      c.offload = {at, end};
      if (c.offload.at > c.reload.at || end > c.reload.time) return false;
      copies_.push_back({c.offload, Op::OFFLOAD, number});
    }
    std::ranges::stable_sort(copies_, [](const Copy& a, const Copy& b) {
      return std::pair(a.place, a.op) < std::pair(b.place, b.op);
    });
    return true;
  }

  /// The place at which more than the limit is held for the first time; nothing if it never is.
  std::optional<Place> FirstOver(int64_t limit) const {
    int64_t held = 0;
    auto copy = copies_.begin();
    for (size_t at = 0; at < program_.size(); ++at) {
      for (; copy != copies_.end() && copy->place.at == at; ++copy) {
        held += (copy->op == Op::RELOAD ? 1 : -1) * cells_[copy->cell].bytes;
        if (held > limit) return copy->place;
      }
      held += taken_[at];
      if (held > limit) return Place{at, std::numeric_limits<Time>::max()};
      held -= given_[at];
    }
    return std::nullopt;
  }

  /// Offloads a cell that is gone at this place: the one that waits longest.
  bool AddFor(const Place& over) {
    const Time time = std::min(over.time, spans_[over.at].start);
    for (auto at = by_backward_.rbegin(); at != by_backward_.rend(); ++at) {
      const Cell& c = cells_[*at];
      if (c.away || spans_[c.f].end + c.copy > time || spans_[c.b].start - c.copy <= time) continue;
      if (!Add(*at)) continue;
      if (c.offload <= over && over < c.reload) return true;
      Drop(*at);
    }
    return false;
  }

  void Drop(size_t cell) {
    cells_[cell].away = false;
    CF_ASSERT(Lay());
  }

  /// The cell that is best gone before instruction `at`: in time, or else as little late as can be,
  /// and of those that are the one that waits longest. kNone if there is nothing to take.
  size_t Victim(size_t at, Time link_free, const std::vector<size_t>& held) const {
    size_t best = kNone;
    Time least = 0;
    for (const size_t number : held) {
      const Cell& c = cells_[number];
      if (c.fixed || c.b <= at) continue;
      const Time begin = spans_[at].start;
      const Time gone = std::max(link_free, spans_[c.f].end) + c.copy;
      const Time late = std::max<Time>(0, gone - begin) +
                        std::max<Time>(0, std::max(gone, begin) + c.copy - spans_[c.b].start);
      if (best != kNone && std::pair(late, cells_[best].b) >= std::pair(least, c.b)) continue;
      best = number;
      least = late;
    }
    return best;
  }

  const Program& program_;
  const std::vector<Span>& spans_;
  std::vector<int64_t> taken_, given_;  // by instruction
  std::vector<size_t> takers_;          // F, FB and R, which wait for OFFLOADs
  std::vector<Cell> cells_;             // in the order of their forwards
  std::vector<size_t> by_backward_;     // their numbers, in the order of their backwards
  std::vector<Copy> copies_;            // as they stand in the program
};

// Walks the program with what the rank holds. If something takes memory that is not there, the best
// victim is offloaded before it. A RELOAD is put in as soon as waiting for one more instruction
// would make it late, if there is room for it, and at the latest before its backward.
void RankOffload::Squeeze(int64_t limit) {
  copies_.clear();
  std::vector<size_t> of_f(program_.size(), kNone), held, gone;  // gone: in the order of backwards
  for (size_t c = 0; c < cells_.size(); ++c) {
    cells_[c].away = false;
    of_f[cells_[c].f] = c;
  }
  int64_t bytes = 0;
  Time link_free = 0;
  for (size_t at = 0; at < program_.size(); ++at) {
    const auto make_room = [&](int64_t more) {
      while (bytes + more > limit) {
        const size_t victim = Victim(at, link_free, held);
        if (victim == kNone) return;
        const Cell& c = cells_[victim];
        link_free = std::max(link_free, spans_[c.f].end) + c.copy;
        copies_.push_back({{at}, Op::OFFLOAD, victim});
        bytes -= c.bytes;
        std::erase(held, victim);
        gone.insert(std::upper_bound(gone.begin(), gone.end(), victim,
                                     [&](size_t a, size_t b) { return cells_[a].b < cells_[b].b; }),
                    victim);
      }
    };
    while (!gone.empty()) {
      Cell& c = cells_[gone.front()];
      Time latest = std::numeric_limits<Time>::max();
      for (auto back = gone.rbegin(); back != gone.rend(); ++back) {
        latest = std::min(latest, spans_[cells_[*back].b].start) - cells_[*back].copy;
      }
      const bool due = latest < spans_[at].end;
      if (c.b != at && (!due || bytes + c.bytes > limit)) break;
      const size_t back = gone.front();
      gone.erase(gone.begin());
      make_room(c.bytes);
      copies_.push_back({{at}, Op::RELOAD, back});
      bytes += c.bytes;
      c.fixed = true;
      held.push_back(back);
    }
    if (taken_[at] > 0) make_room(taken_[at]);
    bytes += taken_[at];
    if (of_f[at] != kNone) held.push_back(of_f[at]);
    bytes -= given_[at];
    std::erase_if(held, [&](size_t c) { return cells_[c].b <= at; });
  }
}

using Spans = std::vector<std::vector<Span>>;

/// Times of the instructions of the order or, once offloaded, without the copies.
Spans TimesOf(const Plan& plan, const CostModel& costs) {
  Spans spans = Simulate(plan, costs).timeline.ranks;
  for (size_t r = 0; r < spans.size(); ++r) {
    size_t kept = 0;
    for (size_t at = 0; at < spans[r].size(); ++at) {
      if (!IsHostCopy(plan.programs[r][at].op)) spans[r][kept++] = spans[r][at];
    }
    spans[r].resize(kept);
  }
  return spans;
}

/// Calls choose(RankOffload*, rank) for every rank and makes the plan of it.
template <typename Choose>
Plan OffloadRanks(Plan plan, const CostModel& costs, const Spans& spans, const Choose& choose) {
  const RecomputedCells recomputed(plan);
  const std::vector<CellBytes> cells = BytesOfCells(costs, recomputed, plan.stages);
  for (size_t r = 0; r < plan.programs.size(); ++r) {
    RankOffload rank(plan.programs[r], spans[r], costs, recomputed, cells);
    choose(&rank, r);
    Program program = rank.Run();
    plan.programs[r] = std::move(program);
  }
  return plan;
}

/// Excess of the fullest rank over its limit.
int64_t ExcessOf(const Simulation& run, const CostModel& costs,
                 const std::vector<int64_t>& limits) {
  int64_t excess = 0;
  for (size_t r = 0; r < limits.size(); ++r) {
    excess = std::max(excess, MemoryLimit(costs).Peak(run.ranks[r]) - limits[r]);
  }
  return excess;
}

}  // namespace

Plan OffloadStages(Plan order, const CostModel& costs, const std::vector<int>& stages) {
  CF_ASSERT(order.level == Level::kCompute);
  CheckHostCost(costs, true);
  const Spans spans = TimesOf(order, costs);
  return OffloadRanks(std::move(order), costs, spans, [&](RankOffload* rank, size_t) {
    std::vector<size_t> cells;
    for (size_t c = 0; c < rank->size(); ++c) {
      if (std::binary_search(stages.begin(), stages.end(), rank->stage(c))) cells.push_back(c);
    }
    // The cell that waits longest comes first: where the links do not keep up, that is worth most.
    std::stable_sort(cells.begin(), cells.end(),
                     [&](size_t a, size_t b) { return rank->Wait(a) > rank->Wait(b); });
    for (const size_t c : cells) rank->Add(c);
  });
}

Plan OffloadToFit(const Plan& order, const CostModel& costs, const std::vector<int64_t>& limits) {
  CF_ASSERT(order.level == Level::kCompute);
  CheckHostCost(costs, true);
  if (limits.empty()) return order;
  // A cell that waits for copies comes later than in the order: then others are better to take.
  constexpr int kRounds = 4;
  Spans spans = TimesOf(order, costs);
  Plan best;
  std::pair<int64_t, Time> least;
  for (int round = 0; round < kRounds; ++round) {
    bool squeezed = false;
    Plan plan = OffloadRanks(order, costs, spans, [&](RankOffload* rank, size_t r) {
      if (rank->Fit(limits[r])) return;
      rank->Squeeze(limits[r]);
      squeezed = true;
    });
    const Simulation run = Simulate(plan, costs, Keep::kFigures);
    const std::pair worth(ExcessOf(run, costs, limits), run.makespan);
    if (squeezed) spans = TimesOf(plan, costs);
    if (round == 0 || worth < least) {
      least = worth;
      best = std::move(plan);
    }
    if (!squeezed) break;
  }
  return best;
}

}  // namespace contraflow
