// Lanes. A rank's components run on two lanes, one after the other on each. For every job of a lane
// its head is the time before its micro-batch can have come to it and its tail what must follow it
// on the micro-batch's way; the largest of (least head + durations + least tail) over all sets of
// jobs is the makespan of Jackson's preemptive schedule. Components may overlap in any other way.
// A recomputed part of a forward chain counts for nothing; a whole
// recomputed forward chain is run a second time, between the first and the backward chain.
//
// Windows of a rank whose components share two lanes, with a memory limit. Any components may
// overlap, but:
//
//   * Until the first gradient has come to a rank it can only run forwards, of no more chunks than
//     it may hold between F and B.
//   * When a lane has run the last of its forward components (of chunk x, say), everything that is
//     left for it belongs to chunks that the rank holds: x and others between F and B, with all of
//     their backward and weight parts, and those after their B, with their weight parts. Until
//     the end of the step no less passes than x still needs, down to the last stage and all the way
//     back.
//
// The lane is idle in the part of the two windows that this work does not fill. They do not meet
// where memory is for fewer chunks than there are, since then some forward waits for the end of a
// backward; else, and where some chunk has nothing to do on the lane (it may be that forward), only
// the larger idle counts. On either lane:
//
//     makespan >= head + work + idle + idle.

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "compiler/bound/jackson.h"
#include "compiler/bound/work.h"
#include "compiler/plan/plan.h"

namespace contraflow {
namespace {

/// The components of one direction of a chunk, which run one after the other, by lane.
struct ChainTimes {
  std::array<Time, 2> work{};
  std::array<Time, 2> head{},
      tail{};  ///< of the chain before the first, and after the last of them

  Time all() const { return work[kCompute] + work[kAllToAll]; }
  void Add(Op op, Time time) {
    const size_t lane = WorkOf(op) == Work::kAllToAll ? kAllToAll : kCompute;
    if (!begun_[lane]) head[lane] = all();
    begun_[lane] = true;
    work[lane] += time;
    tail[lane] = 0;
    tail[1 - lane] += time;
  }
  bool On(size_t lane) const { return begun_[lane]; }

 private:
  std::array<bool, 2> begun_{};
};

/// The components of a chunk.
struct Components {
  ChainTimes forward, backward;
  Time weights = 0;
  Time first_weight =
      0;                 ///< from the start of the backward to the first weight component, at least
  Time last_weight = 0;  ///< ATTN_W of the first layer
};

Components ComponentsOf(const Plan& plan, const CostModel& costs, int s, int m) {
  Components c;
  const int layers = plan.LayersOf(s);
  const auto cost = [&](Op op, int layer) { return costs.Duration(Component(op, s, layer, m)); };
  const auto has = [&](Op op, int layer) { return Has(plan.KindOf(s, layer), op); };
  for (int layer = 0; layer < layers; ++layer) {
    for (const Op op : {Op::ATTN_F, Op::DISPATCH_F, Op::MLP_F, Op::COMBINE_F}) {
      if (has(op, layer)) c.forward.Add(op, cost(op, layer));
    }
    for (const Op op : {Op::ATTN_W, Op::MLP_W}) {
      if (has(op, layer)) c.weights += cost(op, layer);
    }
  }
  bool weights = false;
  for (int layer = layers; layer-- > 0;) {
    for (const Op op : {Op::COMBINE_B, Op::MLP_B, Op::DISPATCH_B, Op::ATTN_B}) {
      if (!has(op, layer)) continue;
      c.backward.Add(op, cost(op, layer));
      if (!weights && WorkOf(op) != Work::kAllToAll) {
        c.first_weight = c.backward.all();
        weights = true;
      }
    }
  }
  c.last_weight = cost(Op::ATTN_W, 0);
  return c;
}

/// Component times of every stage of one micro-batch.
std::vector<Components> ComponentsOf(const Plan& plan, const CostModel& costs, int m) {
  std::vector<Components> stages;
  for (int s = 0; s < plan.stages; ++s) {
    const bool alike = s > 0 && plan.stage_layers.empty() && costs.stage_moe.empty();
    stages.push_back(alike ? stages.front() : ComponentsOf(plan, costs, s, m));
  }
  return stages;
}

/// The chains of a micro-batch through its stages.
struct Way {
  std::vector<Time> down;    ///< when it comes to each stage
  std::vector<Time> up;      ///< when its gradient does
  std::vector<Time> behind;  ///< work after the backward chain of each stage
  Time all = 0;

  /// `turn`: what lies between the last forward and the first backward chain.
  Way(const Route& route, const std::vector<Components>& stages, Time hop, Time turn)
      : down(stages.size()), up(stages.size()), behind(stages.size()) {
    const auto message = [&](size_t s) {  // between a stage and the one before it
      return route.ranks[s - 1] == route.ranks[s] ? 0 : hop;
    };
    behind[0] = stages[0].last_weight;
    for (size_t s = 1; s < stages.size(); ++s) {
      down[s] = down[s - 1] + stages[s - 1].forward.all() + message(s);
      behind[s] = behind[s - 1] + stages[s - 1].backward.all() + message(s);
    }
    const size_t last = stages.size() - 1;
    up[last] = down[last] + stages[last].forward.all() + turn;
    for (size_t s = last; s-- > 0;) {
      up[s] = up[s + 1] + stages[s + 1].backward.all() + message(s + 1);
    }
    all = up[0] + stages[0].backward.all() + behind[0];
  }
};

/// Adds a micro-batch's jobs to the ranks of its route and returns its critical path.
Time AddComponents(const Route& route, const std::vector<Components>& stages, Time hop,
                   const std::function<bool(size_t)>& recomputed,
                   std::vector<std::array<Jackson, 2>>* ranks) {
  const size_t last = stages.size() - 1;
  const Way way(route, stages, hop, recomputed(last) ? stages[last].forward.all() : 0);
  for (size_t s = 0; s < stages.size(); ++s) {
    const Components& c = stages[s];
    const Time forward_end = way.down[s] + c.forward.all();
    auto& lanes = (*ranks)[static_cast<size_t>(route.ranks[s])];
    for (const size_t lane : {kCompute, kAllToAll}) {
      const auto add = [&](const ChainTimes& chain, Time from, Time after) {
        if (chain.On(lane)) {
          lanes[lane].Add(from + chain.head[lane], chain.work[lane], chain.tail[lane] + after);
        }
      };
      add(c.forward, way.down[s], way.all - forward_end);
      if (recomputed(s)) add(c.forward, forward_end, c.backward.all() + way.behind[s]);
      add(c.backward, way.up[s], way.behind[s]);
    }
    lanes[kCompute].Add(way.up[s] + c.first_weight, c.weights, 0);
  }
  return way.all;
}

/// One lane of a rank.
struct LaneFigures {
  Time head = kNever;   ///< before it no component runs
  Time first = kNever;  ///< before it no backward component runs
  Time last = kNever;   ///< from the end of its last forward component to the end of the step
  Time longest_f = 0, longest_b = 0, longest_w = 0;  ///< of a chunk
  Time work = 0;
  bool every = true;  ///< every chunk has components on it
};

struct LaneWindows {
  std::array<LaneFigures, 2> lanes;
  int64_t count = 0;  ///< chunks
};

/// Adds the chunks of a micro-batch to the ranks of its route.
void Add(const Route& route, const std::vector<Components>& stages, Time hop,
         std::vector<LaneWindows>* ranks) {
  const Way way(route, stages, hop, 0);
  for (size_t s = 0; s < stages.size(); ++s) {
    const Components& c = stages[s];
    LaneWindows& rank = (*ranks)[static_cast<size_t>(route.ranks[s])];
    ++rank.count;
    for (const size_t which : {kCompute, kAllToAll}) {
      LaneFigures& lane = rank.lanes[which];
      if (!c.forward.On(which)) {
        lane.every = false;
        continue;
      }
      const Time weights = which == kCompute ? c.weights : 0;
      const Time end = way.down[s] + c.forward.all();
      lane.head = std::min(lane.head, way.down[s] + c.forward.head[which]);
      lane.first = std::min(lane.first, way.up[s] + c.backward.head[which]);
      lane.last = std::min(lane.last, way.all - end + c.forward.tail[which]);
      lane.longest_f = std::max(lane.longest_f, c.forward.work[which]);
      lane.longest_b = std::max(lane.longest_b, c.backward.work[which]);
      lane.longest_w = std::max(lane.longest_w, weights);
      lane.work += c.forward.work[which] + c.backward.work[which] + weights;
    }
  }
}

Bound BoundOfLane(const LaneFigures& lane, int64_t count, const MemoryLimit& memory) {
  const int64_t slots = std::min(memory.slots(), count);
  const Time first = std::max<Time>(0, lane.first - lane.head - slots * lane.longest_f);
  const Time last =
      std::max<Time>(0, lane.last - MostHeld(memory, count, lane.longest_b, lane.longest_w));
  const bool apart = slots < count && lane.every;
  const Time idle = apart ? first + last : std::max(first, last);
  return {.value = lane.head + lane.work + idle,
          .kind = BoundKind::kTwoWindows,
          .head = lane.head,
          .work = lane.work,
          .idle = idle};
}

}  // namespace

void RaiseByComponents(const Plan& plan, const CostModel& costs, Bound* best) {
  const Time hop = costs.comm.latency + costs.comm.occupancy;
  const RecomputedCells chunks(plan);
  std::vector<std::array<Jackson, 2>> ranks(static_cast<size_t>(plan.ranks));
  for (const Route& route : plan.routes) {
    for (const int m : route.microbatches) {
      const auto recomputed = [&](size_t s) {
        const int stage = static_cast<int>(s);
        return chunks.Has(stage, m) && chunks.extent(stage).whole();
      };
      const Time path = AddComponents(route, ComponentsOf(plan, costs, m), hop, recomputed, &ranks);
      KeepLarger(best, {.value = path, .kind = BoundKind::kCriticalPath, .work = path});
    }
  }
  for (int r = 0; r < plan.ranks; ++r) {
    for (Jackson& lane : ranks[static_cast<size_t>(r)]) {
      const Time value = lane.Makespan();
      if (value <= best->value) continue;
      const auto [head, work, tail] = lane.Binding();
      KeepLarger(best, {.value = value,
                        .kind = BoundKind::kLane,
                        .rank = r,
                        .head = head,
                        .work = work,
                        .tail = tail});
    }
  }
}

void RaiseByComponentWindows(const Plan& plan, const CostModel& costs, int64_t limit, Bound* best) {
  const MemoryLimit memory(costs, limit);
  const Time hop = costs.comm.latency + costs.comm.occupancy;
  std::vector<LaneWindows> ranks(static_cast<size_t>(plan.ranks));
  for (const Route& route : plan.routes) {
    for (const int m : route.microbatches) {
      Add(route, ComponentsOf(plan, costs, m), hop, &ranks);
    }
  }
  for (int r = 0; r < plan.ranks; ++r) {
    const LaneWindows& rank = ranks[static_cast<size_t>(r)];
    if (rank.count == 0) continue;
    for (const LaneFigures& lane : rank.lanes) {
      if (lane.head == kNever) continue;
      Bound bound = BoundOfLane(lane, rank.count, memory);
      bound.rank = r;
      KeepLarger(best, bound);
    }
  }
}

}  // namespace contraflow
