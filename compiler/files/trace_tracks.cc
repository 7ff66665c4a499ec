#include "compiler/files/trace_tracks.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/recompute_cost.h"

namespace contraflow {
namespace {

/// Lanes of one rank in the order in which they are drawn; those of peers have the peer as well.
enum class Drawn : uint8_t { kCompute, kAllToAll, kPeer, kReduce, kOffload, kReload };

struct DrawnLane {
  Drawn kind = Drawn::kCompute;
  int peer = -1;
  bool receives = false;

  auto operator<=>(const DrawnLane&) const = default;
};

DrawnLane LaneFor(const Instruction& i) {
  const Work work = WorkOf(i.op);
  if (IsMessage(i.op)) return {Drawn::kPeer, i.peer, IsRecv(i.op)};
  if (work == Work::kOffload) return {Drawn::kOffload};
  if (work == Work::kReload) return {Drawn::kReload};
  if (i.lane == Lane::kReduce) return {Drawn::kReduce};
  const bool all_to_all = work == Work::kAllToAll || i.lane == Lane::kAllToAll;
  return {all_to_all ? Drawn::kAllToAll : Drawn::kCompute};
}

std::string NameOfLane(const DrawnLane& lane) {
  switch (lane.kind) {
    case Drawn::kCompute:
      return "compute";
    case Drawn::kAllToAll:
      return "all-to-all";
    case Drawn::kReduce:
      return "reduce";
    case Drawn::kOffload:
      return "offload";
    case Drawn::kReload:
      return "reload";
    case Drawn::kPeer:
      break;
  }
  return (lane.receives ? "receive from " : "send to ") + std::to_string(lane.peer);
}

/// When the activation of one cell of a rank comes and goes; -1: never.
struct HeldCell {
  Time forward = -1, forward_end = -1, backward_end = -1, weight_end = -1;
  Time again = -1, offload_end = -1, reload = -1;
};

void Earliest(Time time, Time* field) { *field = *field < 0 ? time : std::min(*field, time); }
void Latest(Time time, Time* field) { *field = std::max(*field, time); }

bool IsWeightComponent(Op op) { return op == Op::ATTN_W || op == Op::MLP_W; }
bool IsBackwardComponent(Op op) {
  return op == Op::ATTN_B || op == Op::MLP_B || op == Op::DISPATCH_B || op == Op::COMBINE_B;
}

using HeldCells = std::map<std::pair<int, int>, HeldCell>;

void AddHeld(const Instruction& i, const Span& span, HeldCells* cells) {
  if (OperandsOf(i.op) == Operands::kStage || IsMessage(i.op)) return;
  HeldCell& cell = (*cells)[{i.stage, i.microbatch}];
  if (IsRecompute(i.op)) {
    Earliest(span.start, &cell.again);
  } else if (HasForward(i.op) || IsForwardComponent(i.op)) {
    Earliest(span.start, &cell.forward);
    Latest(span.end, &cell.forward_end);
  }
  if (i.op == Op::OFFLOAD) Latest(span.end, &cell.offload_end);
  if (i.op == Op::RELOAD) Earliest(span.start, &cell.reload);
  if (HasBackward(i.op) || HasWeight(i.op)) {
    HeldCell& back = (*cells)[{BackStage(i), BackMicrobatch(i)}];
    if (HasBackward(i.op)) Latest(span.end, &back.backward_end);
    if (HasWeight(i.op)) Latest(span.end, &back.weight_end);
  }
  if (IsBackwardComponent(i.op)) Latest(span.end, &cell.backward_end);
  if (IsWeightComponent(i.op)) Latest(span.end, &cell.weight_end);
}

}  // namespace

Span DrawnSpan(const Instruction& instruction, Span span) {
  if (IsMessage(instruction.op) && span.end == span.start) ++span.end;
  return span;
}

RankTracks TracksOf(const Program& program, const std::vector<Span>& spans) {
  CF_ASSERT(program.size() == spans.size());
  std::map<DrawnLane, std::vector<size_t>> lanes;
  for (size_t i = 0; i < program.size(); ++i) lanes[LaneFor(program[i])].push_back(i);
  RankTracks tracks{std::vector<int>(program.size(), -1), {}};
  for (auto& [lane, indices] : lanes) {
    const auto drawn = [&](size_t i) { return DrawnSpan(program[i], spans[i]); };
    std::stable_sort(indices.begin(), indices.end(), [&](size_t a, size_t b) {
      return std::pair(spans[a].start, spans[a].end) < std::pair(spans[b].start, spans[b].end);
    });
    const size_t first = tracks.names.size();
    std::vector<Time> free;  // when each track of the lane is
    for (const size_t i : indices) {
      const Span span = drawn(i);
      const auto fits = std::ranges::find_if(free, [&](Time end) { return end <= span.start; });
      const auto track = static_cast<size_t>(fits - free.begin());
      if (fits == free.end()) {
        free.push_back(span.end);
        tracks.names.push_back(NameOfLane(lane) +
                               (track == 0 ? "" : " (" + std::to_string(track + 1) + ")"));
      } else {
        *fits = span.end;
      }
      tracks.of[i] = static_cast<int>(first + track);
    }
  }
  return tracks;
}

bool HoldsBytes(const Plan& plan) {
  if (!plan.costs || !plan.costs->memory) return false;
  const MemoryCost& memory = *plan.costs->memory;
  const auto fits = [&](const std::vector<int64_t>& list) {
    return list.empty() || std::cmp_equal(list.size(), plan.stages);
  };
  return memory.activation_bytes > 0 && fits(memory.activation_of) && fits(memory.stash_of);
}

std::vector<HeldSample> HeldOver(const Plan& plan, size_t rank, const std::vector<Span>& spans) {
  const Program& program = plan.programs[rank];
  CF_ASSERT(program.size() == spans.size());
  HeldCells cells;
  for (size_t i = 0; i < program.size(); ++i) AddHeld(program[i], spans[i], &cells);
  const bool bytes = HoldsBytes(plan);
  const RecomputedCells recomputed(plan);
  std::map<Time, int64_t> changes;
  for (const auto& [at, cell] : cells) {
    const bool again = cell.again >= 0 && (!bytes || InputBytes(*plan.costs, at.first));
    const CellBytes each =
        bytes ? BytesOfCell(*plan.costs, at.first, again, recomputed.extent(at.first))
              : CellBytes{.activation = 1, .stash = 1};
    if (cell.forward >= 0) changes[cell.forward] += each.activation;
    if (cell.backward_end >= 0) changes[cell.backward_end] -= each.activation - each.stash;
    if (cell.weight_end >= 0) changes[cell.weight_end] -= each.stash;
    if (again) {
      changes[cell.forward_end] -= each.activation - each.input;
      changes[cell.again] += each.activation - each.input;
    }
    if (bytes && cell.offload_end >= 0 && cell.reload >= 0) {
      changes[cell.offload_end] -= each.activation;
      changes[cell.reload] += each.activation;
    }
  }
  std::vector<HeldSample> samples;
  int64_t held = 0;
  for (const auto& [time, change] : changes) {
    held += change;
    if (change != 0) samples.push_back({time, held});
  }
  return samples;
}

}  // namespace contraflow
