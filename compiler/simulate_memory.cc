#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "compiler/simulate_lanes.h"

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

void FollowActivations(const Plan& plan, const CostModel& costs, size_t r,
                       const std::vector<Span>& spans, RankFigures* figures) {
  const MemoryCost memory = costs.memory.value_or(MemoryCost{});
  const Program& program = plan.programs[r];
  std::vector<Change> changes;
  // Weight parts seen of a chunk, and the end of the latest.
  std::map<std::pair<int, int>, std::pair<int, Time>> weights;
  for (size_t at = 0; at < program.size(); ++at) {
    const Instruction& i = program[at];
    const int index = static_cast<int>(at);
    if (HasForward(i.op) || (i.op == Op::ATTN_F && i.layer == 0)) {
      changes.push_back({spans[at].start, index, false, 1, memory.activation_bytes});
    }
    if (HasBackward(i.op) || (i.op == Op::ATTN_B && i.layer == 0)) {
      changes.push_back(
          {spans[at].end, index, true, 0, memory.w_stash_bytes - memory.activation_bytes});
    }
    const bool part = i.op == Op::MLP_W || i.op == Op::ATTN_W;
    if (!part && !HasWeight(i.op)) continue;
    auto& [seen, end] = weights[{BackStage(i), BackMicrobatch(i)}];
    end = std::max(end, spans[at].end);
    if (!part || ++seen == 2 * plan.layers) {
      changes.push_back({end, index, true, -1, -memory.w_stash_bytes});
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
    if (more_bytes || (more && memory.activation_bytes == 0)) figures->peak_index = change.index;
    figures->peak_bytes = std::max(figures->peak_bytes, bytes);
    figures->peak_activations = std::max(figures->peak_activations, activations);
  }
}

}  // namespace contraflow
