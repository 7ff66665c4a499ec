#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "compiler/simulate/lanes.h"

namespace contraflow {
namespace {

/// What a rank holds changes, at the start or the end of an instruction.
struct Change {
  Time time;
  int index;
  bool end;  // what an instruction gives back it gives back at its end
  int activations;
  int64_t bytes;

  bool operator<(const Change& other) const {
    return std::tie(time, index, end) < std::tie(other.time, other.index, other.end);
  }
};

}  // namespace

void FollowActivations(const Plan& plan, const CostModel& costs, const RecomputedCells& recomputed,
                       size_t r, const std::vector<Span>& spans, RankFigures* figures) {
  const CellBytes memory = BytesOfCell(costs, recomputed.any());
  const Program& program = plan.programs[r];
  std::vector<Change> changes;
  // Weight parts seen of a chunk, and the end of the latest.
  std::map<std::pair<int, int>, std::pair<int, Time>> weights;
  for (size_t at = 0; at < program.size(); ++at) {
    const Instruction& i = program[at];
    const int index = static_cast<int>(at);
    const bool first = i.layer <= 0, last = i.layer < 0 || i.layer + 1 == plan.layers;
    if (HasForward(i.op) || (i.op == Op::ATTN_F && first)) {
      changes.push_back({spans[at].start, index, false, 1, memory.activation});
    }
    if ((HasForward(i.op) || (i.op == Op::COMBINE_F && last)) &&
        recomputed.Has(i.stage, i.microbatch)) {
      changes.push_back({spans[at].end, index, true, -1, memory.input - memory.activation});
    }
    if (i.op == Op::R || (i.op == Op::ATTN_R && first)) {
      changes.push_back({spans[at].start, index, false, 1, memory.activation - memory.input});
    }
    if (HasBackward(i.op) || (i.op == Op::ATTN_B && first)) {
      changes.push_back({spans[at].end, index, true, 0, memory.stash - memory.activation});
    }
    const bool part = i.op == Op::MLP_W || i.op == Op::ATTN_W;
    if (!part && !HasWeight(i.op)) continue;
    auto& [seen, end] = weights[{BackStage(i), BackMicrobatch(i)}];
    end = std::max(end, spans[at].end);
    if (!part || ++seen == 2 * plan.layers) {
      changes.push_back({end, index, true, -1, -memory.stash});
      weights.erase({BackStage(i), BackMicrobatch(i)});
    }
  }
  std::sort(changes.begin(), changes.end());
  int activations = 0;
  int64_t bytes = 0;
  for (const Change& change : changes) {
    activations += change.activations;
    bytes += change.bytes;
    const bool more_bytes = bytes > figures->peak_bytes;
    const bool more = activations > figures->peak_activations;
    if (more_bytes || (more && memory.activation == 0)) figures->peak_index = change.index;
    figures->peak_bytes = std::max(figures->peak_bytes, bytes);
    figures->peak_activations = std::max(figures->peak_activations, activations);
  }
}

}  // namespace contraflow
