#include "tools/contraflow/advice.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "schedules/published/rows.h"
#include "tools/contraflow/report_text.h"
#include "tools/contraflow/table.h"

namespace contraflow {
namespace {

/// What a shorter step must save to be worth anything less simple.
constexpr double kWorthwhile = 0.01;

/// From the simplest: 1F1B, then in the order of the table, where what is searched is last.
std::vector<const Row*> SimplestFirst(std::span<const Row> rows) {
  std::vector<const Row*> fit;
  for (const Row& row : rows) {
    if (row.report && row.same_model) fit.push_back(&row);
  }
  std::stable_partition(fit.begin(), fit.end(),
                        [](const Row* row) { return row->schedule == kOneFOneB.name; });
  return fit;
}

double ShorterBy(const Row& row, const Row& than) {
  if (than.makespan() == 0) return 0;
  return static_cast<double>(than.makespan() - row.makespan()) /
         static_cast<double>(than.makespan());
}

bool Shorter(const Row* a, const Row* b) { return a->makespan() < b->makespan(); }

/// The best published row, nothing if `taken` alone fits.
const Row* BestOther(const std::vector<const Row*>& fit, const Row* taken) {
  std::vector<const Row*> others;
  for (const Row* row : fit) {
    if (row != taken && row->schedule != kAuto.name) others.push_back(row);
  }
  if (others.empty()) return nullptr;
  return *std::min_element(others.begin(), others.end(), Shorter);
}

std::string Name(const Row& row) {
  if (!row.provenance) return row.schedule;
  // What policies are called means nothing to those who did not write them.
  const std::string& from = row.provenance->from;
  const bool published = from.find(' ') == std::string::npos;
  return row.schedule + " (" + row.provenance->placement + " placement" +
         (published ? ", from " + from : "") + ")";
}

/// "12.3 % shorter than 1f1b", or that nothing else fits.
std::string Gain(const Row& taken, const std::vector<const Row*>& fit) {
  const Row* const other = BestOther(fit, &taken);
  if (other == nullptr) return "nothing else fits";
  const Row* const simplest = fit.front();
  std::string text;
  if (simplest != &taken && simplest != other) {
    text = FormatPercent(ShorterBy(taken, *simplest)) + " shorter than " + simplest->schedule +
           " and ";
  }
  const double gain = ShorterBy(taken, *other);
  const std::string than =
      gain == 0 ? std::string("as long as ")
                : FormatPercent(std::abs(gain)) + (gain < 0 ? " longer than " : " shorter than ");
  return text + than + other->schedule + ", the best other published one that fits";
}

std::string Price(const Row& taken) {
  return taken.twice ? "; every rank holds the parameters of two stages" : "";
}

std::string NothingFits(std::span<const Row> rows) {
  const bool any =
      std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.report.has_value(); });
  if (any) {
    return "no schedule of these fits the model that the costs describe; give costs of one stage "
           "a rank, or leave --no-auto out";
  }
  return "no schedule fits; raise --memory-limit, or see above what each of them needs";
}

}  // namespace

Advice Advise(std::span<const Row> rows) {
  const std::vector<const Row*> fit = SimplestFirst(rows);
  if (fit.empty()) return {"", NothingFits(rows)};
  const Row* const shortest = *std::min_element(fit.begin(), fit.end(), Shorter);
  const auto close = [&](const Row* row) { return ShorterBy(*shortest, *row) <= kWorthwhile; };
  const Row& taken = **std::find_if(fit.begin(), fit.end(), close);
  const std::string figures = FormatWithUnit(taken.makespan(), taken.report->unit) + ", " +
                              FormatPercent(taken.report->gap()) + " above the bound of " +
                              (taken.provenance ? "its placement" : "its placement and memory");
  if (taken.schedule == kOneFOneB.name) {
    const double gain = ShorterBy(*shortest, taken);
    return {taken.schedule, "take 1F1B (1f1b): nothing is simpler, and " +
                                (gain > 0 ? "the shortest that fits, " + shortest->schedule +
                                                ", saves no more than " + FormatPercent(gain)
                                          : std::string("nothing that fits is shorter")) +
                                "; " + figures};
  }
  return {taken.schedule,
          "take " + Name(taken) + ": " + Gain(taken, fit) + "; " + figures + Price(taken)};
}

}  // namespace contraflow
