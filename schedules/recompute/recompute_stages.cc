// Memory can be bought with time where it is needed. Ranks do not share memory, so each is looked
// at alone, and since more recompute never holds more, what one rank needs cannot spoil another.

#include <algorithm>
#include <utility>

#include "compiler/plan/recomputed.h"
#include "schedules/recompute/recompute.h"

namespace contraflow {
namespace {

/// Subsets of more stages than this are not all tried.
constexpr size_t kMostTried = 10;

/// The most that one rank holds. Whatever begins or ends an activation runs on the compute lane, so
/// program order is the order in time.
class RankPeak {
 public:
  RankPeak(const Program& program, const CellBytes& bytes) : program_(program), bytes_(bytes) {}

  /// With these stages recomputed, R being directly before the backward.
  int64_t With(const std::vector<bool>& recomputed) const {
    int64_t held = 0, peak = 0;
    const int64_t dropped = bytes_.activation - bytes_.input;
    for (const Instruction& i : program_) {
      const bool back = HasBackward(i.op) && recomputed[static_cast<size_t>(BackStage(i))];
      if (back) peak = std::max(peak, held += dropped);
      if (HasForward(i.op)) peak = std::max(peak, held += bytes_.activation);
      if (HasForward(i.op) && recomputed[static_cast<size_t>(i.stage)]) held -= dropped;
      if (HasBackward(i.op)) held -= bytes_.activation - bytes_.stash;
      if (HasWeight(i.op)) held -= bytes_.stash;
    }
    return peak;
  }

 private:
  const Program& program_;
  const CellBytes bytes_;
};

/// The stages of a rank that its program has not chosen yet, cheapest first.
std::vector<int> OpenStages(const Program& program, const std::vector<bool>& chosen,
                            const CostModel& costs) {
  std::vector<int> stages;
  for (const Instruction& i : program) {
    if (HasForward(i.op) && !chosen[static_cast<size_t>(i.stage)]) stages.push_back(i.stage);
  }
  std::sort(stages.begin(), stages.end());
  stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  std::stable_sort(stages.begin(), stages.end(), [&](int a, int b) {
    return costs.stage(a).recompute() < costs.stage(b).recompute();
  });
  return stages;
}

/// Adds to `chosen` the cheapest of all subsets with which the rank fits; false if none does.
bool AddCheapest(const RankPeak& peak, const std::vector<int>& stages, const CostModel& costs,
                 int64_t limit, std::vector<bool>* chosen) {
  std::vector<std::pair<Time, unsigned>> subsets;  // time of R for a micro-batch, members
  for (unsigned members = 0; members < 1U << stages.size(); ++members) {
    Time time = 0;
    for (size_t k = 0; k < stages.size(); ++k) {
      if ((members >> k & 1) != 0) time += costs.stage(stages[k]).recompute();
    }
    subsets.push_back({time, members});
  }
  std::sort(subsets.begin(), subsets.end());
  for (const auto& [time, members] : subsets) {
    std::vector<bool> with = *chosen;
    for (size_t k = 0; k < stages.size(); ++k) {
      if ((members >> k & 1) != 0) with[static_cast<size_t>(stages[k])] = true;
    }
    if (peak.With(with) > limit) continue;
    *chosen = std::move(with);
    return true;
  }
  return false;
}

/// Adds one stage after the other, each the one that saves most for its time, until the rank fits.
void AddGreedily(const RankPeak& peak, std::vector<int> stages, const CostModel& costs,
                 int64_t limit, std::vector<bool>* chosen) {
  int64_t held = peak.With(*chosen);
  while (held > limit && !stages.empty()) {
    size_t best = 0;
    double most = -1;
    int64_t left = held;
    for (size_t k = 0; k < stages.size(); ++k) {
      std::vector<bool> with = *chosen;
      with[static_cast<size_t>(stages[k])] = true;
      const int64_t now = peak.With(with);
      const double gain = static_cast<double>(held - now) /
                          static_cast<double>(1 + costs.stage(stages[k]).recompute());
      if (gain <= most) continue;
      most = gain;
      best = k;
      left = now;
    }
    (*chosen)[static_cast<size_t>(stages[best])] = true;
    stages.erase(stages.begin() + static_cast<std::ptrdiff_t>(best));
    held = left;
  }
}

}  // namespace

std::vector<int> StagesToFit(const Plan& plan, const CostModel& costs, int64_t limit) {
  const CellBytes bytes = BytesOfCell(costs, true);
  std::vector<bool> chosen(static_cast<size_t>(plan.stages), false);
  for (const Program& program : plan.programs) {
    const RankPeak peak(program, bytes);
    if (peak.With(chosen) <= limit) continue;
    const std::vector<int> stages = OpenStages(program, chosen, costs);
    if (stages.size() <= kMostTried && AddCheapest(peak, stages, costs, limit, &chosen)) continue;
    AddGreedily(peak, stages, costs, limit, &chosen);
  }
  std::vector<int> stages;
  for (int s = 0; s < plan.stages; ++s) {
    if (chosen[static_cast<size_t>(s)]) stages.push_back(s);
  }
  return stages;
}

}  // namespace contraflow
