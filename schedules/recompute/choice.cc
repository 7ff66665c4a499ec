// Memory can be bought with time where it is needed. Ranks do not share memory, so each is looked
// at alone, and since more recompute never holds more, what one rank needs cannot spoil another.
// All layers of a stage run again, or its first ones: all that they hold but the input of the stage
// is freed for as long as their forward takes again.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/rank_memory.h"
#include "compiler/plan/recompute_cost.h"
#include "schedules/recompute/recompute.h"

namespace contraflow {
namespace {

/// Most choices of a rank that are all tried.
constexpr size_t kMostTried = 1024;

/// One way to recompute a stage.
struct StageOption {
  RecomputeExtent extent;
  Time time = 0;  ///< of R, for a micro-batch
  CellBytes bytes;
};

/// Options of one stage, each with more time and less memory than the one before it; the first is
/// to recompute nothing.
using StageOptions = std::vector<StageOption>;

StageOptions OptionsOf(const CostModel& costs, int s, RecomputePart part, Grain grain) {
  StageOptions options = {{{}, 0, BytesOfCell(costs, s, false)}};
  const auto add = [&](const RecomputeExtent& extent) {
    if (!HasSome(costs, s, extent)) return;
    const CellBytes bytes = BytesOfCell(costs, s, true, extent);
    const Time time = costs.Duration(RecomputeOp(s, -1, extent));
    if (grain == Grain::kLayers && bytes.input >= options.back().bytes.input) return;
    while (options.size() > 1 && options.back().time >= time) options.pop_back();
    options.push_back({extent, time, bytes});
  };
  for (int k = 1; grain == Grain::kLayers && k < costs.LayersIn(s); ++k) add({part, k});
  add(part);
  return options;
}

/// Option that each stage takes.
using Chosen = std::vector<size_t>;

/// The most that one rank holds. Whatever begins or ends an activation runs on the compute lane, so
/// program order is the order in time.
class RankPeak {
 public:
  RankPeak(const Program& program, const std::vector<StageOptions>& options)
      : program_(program), options_(options) {}

  /// R being directly before the backward.
  int64_t With(const Chosen& chosen) const {
    RankMemory memory;
    const auto bytes_of = [&](int stage) -> const CellBytes& {
      const auto s = static_cast<size_t>(stage);
      return options_[s][chosen[s]].bytes;
    };
    for (const Instruction& i : program_) {
      const CellBytes& own = bytes_of(i.stage);
      const CellBytes& back = bytes_of(BackStage(i));
      // A chunk that is not recomputed keeps all of it as its input.
      if (HasBackward(i.op)) memory.Begin(Op::R, back);
      memory.Begin(i.op, own);
      memory.End(i.op, own, back, true);
    }
    return memory.peak();
  }

 private:
  const Program& program_;
  const std::vector<StageOptions>& options_;
};

/// The stages of a rank for which its program has not chosen yet, cheapest first.
std::vector<size_t> OpenStages(const Program& program, const Chosen& chosen,
                               const std::vector<StageOptions>& options) {
  std::vector<size_t> stages;
  for (const Instruction& i : program) {
    const auto s = static_cast<size_t>(i.stage);
    if (HasForward(i.op) && chosen[s] == 0 && options[s].size() > 1) stages.push_back(s);
  }
  std::sort(stages.begin(), stages.end());
  stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  std::stable_sort(stages.begin(), stages.end(), [&](size_t a, size_t b) {
    return options[a].back().time < options[b].back().time;
  });
  return stages;
}

/// Takes the cheapest of all choices with which the rank fits; false if none does, or if they are
/// too many.
bool TakeCheapest(const RankPeak& peak, const std::vector<size_t>& stages,
                  const std::vector<StageOptions>& options, int64_t limit, Chosen* chosen) {
  size_t count = 1;
  for (const size_t s : stages) {
    count *= options[s].size();
    if (count > kMostTried) return false;
  }
  std::vector<std::pair<Time, size_t>> choices;  // time of R for a micro-batch, which
  const auto each = [&](size_t choice, auto visit) {
    for (const size_t s : stages) {
      visit(s, choice % options[s].size());
      choice /= options[s].size();
    }
  };
  for (size_t choice = 0; choice < count; ++choice) {
    Time time = 0;
    each(choice, [&](size_t s, size_t option) { time += options[s][option].time; });
    choices.push_back({time, choice});
  }
  std::sort(choices.begin(), choices.end());
  for (const auto& [time, choice] : choices) {
    Chosen with = *chosen;
    each(choice, [&](size_t s, size_t option) { with[s] = option; });
    if (peak.With(with) > limit) continue;
    *chosen = std::move(with);
    return true;
  }
  return false;
}

/// Goes one option further of one stage after the other, each the one that saves most for its time,
/// until the rank fits.
void TakeGreedily(const RankPeak& peak, std::vector<size_t> stages,
                  const std::vector<StageOptions>& options, int64_t limit, Chosen* chosen) {
  int64_t held = peak.With(*chosen);
  while (held > limit && !stages.empty()) {
    size_t best = 0;
    double most = -1;
    int64_t left = held;
    for (size_t k = 0; k < stages.size(); ++k) {
      const size_t s = stages[k];
      Chosen with = *chosen;
      const size_t next = ++with[s];
      const int64_t now = peak.With(with);
      const Time time = options[s][next].time - options[s][next - 1].time;
      const double gain = static_cast<double>(held - now) / static_cast<double>(1 + time);
      if (gain <= most) continue;
      most = gain;
      best = k;
      left = now;
    }
    const size_t s = stages[best];
    if (++(*chosen)[s] + 1 == options[s].size()) {
      stages.erase(stages.begin() + static_cast<std::ptrdiff_t>(best));
    }
    held = left;
  }
}

}  // namespace

std::vector<RecomputedStage> StagesToFit(const Plan& plan, const CostModel& costs, int64_t limit,
                                         RecomputePart part, Grain grain) {
  std::vector<StageOptions> options;
  for (int s = 0; s < plan.stages; ++s) options.push_back(OptionsOf(costs, s, part, grain));
  Chosen chosen(options.size(), 0);
  for (const Program& program : plan.programs) {
    const RankPeak peak(program, options);
    if (peak.With(chosen) <= limit) continue;
    const std::vector<size_t> stages = OpenStages(program, chosen, options);
    if (TakeCheapest(peak, stages, options, limit, &chosen)) continue;
    TakeGreedily(peak, stages, options, limit, &chosen);
  }
  std::vector<RecomputedStage> stages;
  for (size_t s = 0; s < options.size(); ++s) {
    if (chosen[s] > 0) stages.push_back({static_cast<int>(s), options[s][chosen[s]].extent});
  }
  return stages;
}

std::vector<RecomputedStage> MostRecomputed(int stages, const Spec& spec) {
  const Recompute& recompute = spec.recompute;
  const bool named = recompute.choice == Recompute::Choice::kStages;
  std::vector<int> chosen = recompute.stages;
  if (!named) {
    chosen.resize(static_cast<size_t>(stages));
    std::iota(chosen.begin(), chosen.end(), 0);
  }
  if (!chosen.empty() && chosen.back() >= stages) {
    throw Error("`recompute`: there is no stage " + std::to_string(chosen.back()) + ", " +
                spec.schedule + " makes " + std::to_string(stages) + " stages (0.." +
                std::to_string(stages - 1) + ")");
  }
  const bool each = recompute.layers.size() > 1;
  if (each && std::cmp_not_equal(recompute.layers.size(), stages)) {
    throw Error("`recompute`: layers of " + std::to_string(recompute.layers.size()) +
                " stages are given, and " + spec.schedule + " makes " + std::to_string(stages) +
                "; give a number for each, 0 for none");
  }
  std::vector<RecomputedStage> result;
  for (size_t k = 0; k < chosen.size(); ++k) {
    const int s = chosen[k];
    if (each && recompute.layers[k] == 0) continue;
    RecomputeExtent extent = recompute.part;
    if (!recompute.layers.empty()) {
      extent.layers = recompute.layers[each ? k : 0];
      const int layers = spec.costs.LayersIn(s);
      if (layers == 0) {
        throw Error(
            "`recompute` layers: the costs do not say how many layers a stage has; give "
            "\"stage\": {.., \"layers\": N}, \"layers\" of the model, or components (\"moe\")");
      }
      if (named && extent.layers > layers) {
        throw Error("`recompute`: stage " + std::to_string(s) + " has " + std::to_string(layers) +
                    (layers == 1 ? " layer, not " : " layers, not ") +
                    std::to_string(extent.layers));
      }
      // All of them is the whole forward.
      if (extent.layers >= layers) extent.layers = 0;
    }
    if (HasSome(spec.costs, s, extent)) {
      result.push_back({s, extent});
    } else if (named) {
      throw Error("`recompute`: stage " + std::to_string(s) +
                  " has no layer with parts, \"moe\" or "
                  "\"dense\", of which " +
                  std::string(Name(extent.part)) + " could run again; leave it out");
    }
  }
  return result;
}

Recompute RepartitionRecompute(Recompute recompute, int from, int to) {
  if (recompute.choice == Recompute::Choice::kStages && !recompute.layers.empty() && from != to) {
    throw Error("`recompute`: layers of single stages are those of the " + std::to_string(from) +
                " stages of the costs, and this placement makes " + std::to_string(to) +
                "; give a `placement` with as many, or layers=N for every stage");
  }
  std::vector<int> stages;
  for (const int stage : recompute.stages) {
    if (stage >= from) {
      throw Error("`recompute`: there is no stage " + std::to_string(stage) +
                  ", the costs of auto describe " + std::to_string(from) + " stages (0.." +
                  std::to_string(from - 1) + ")");
    }
    const int first = to >= from ? stage * (to / from) : stage / (from / to);
    const int parts = std::max(1, to / from);
    for (int part = 0; part < parts; ++part) {
      if (stages.empty() || stages.back() < first + part) stages.push_back(first + part);
    }
  }
  recompute.stages = std::move(stages);
  return recompute;
}

std::vector<RecomputedStage> StagesToRecompute(const Plan& order, const Spec& spec, Grain grain) {
  if (spec.recompute.choice != Recompute::Choice::kAuto) {
    return MostRecomputed(order.stages, spec);
  }
  if (!spec.memory_limit) return {};
  return StagesToFit(order, spec.costs, *spec.memory_limit, spec.recompute.part, grain);
}

}  // namespace contraflow
