#include "tools/profile/sample_groups.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/text.h"

namespace contraflow {
namespace {

/// Groups by rank; -1: not told apart.
using RankGroups = std::map<int, std::map<SampleKey, SampleGroup>>;

/// A stage has one cost, wherever it runs.
void KeepSlowestCopies(const ProfileOptions& options, RankGroups* by_rank, ProfiledCosts* result) {
  std::map<std::vector<SampleKey>, std::vector<int>> copies;
  for (const auto& [rank, groups] : *by_rank) {
    std::vector<SampleKey> keys;
    for (const auto& [key, group] : groups) {
      if (!group.times.empty()) keys.push_back(key);
    }
    if (rank >= 0) copies[std::move(keys)].push_back(rank);
  }
  for (const auto& [keys, ranks] : copies) {
    std::vector<double> totals;
    for (const int rank : ranks) {
      double total = 0;
      for (const SampleKey& key : keys) {
        total += TypicalOf((*by_rank)[rank][key].times, options.mean);
      }
      totals.push_back(total);
    }
    const auto [fastest, slowest] = std::minmax_element(totals.begin(), totals.end());
    const int kept = ranks[static_cast<size_t>(slowest - totals.begin())];
    if (*slowest > *fastest * 1.03) {
      AddNote("ranks " + ListOf(ranks) + " hold copies of the same stages, and rank " +
                  std::to_string(kept) + " is slower by up to " +
                  FormatPercent(*slowest / *fastest - 1) + "; its times count",
              result);
    }
    for (const int rank : ranks) {
      if (rank != kept) by_rank->erase(rank);
    }
  }
}

}  // namespace

SampleGroups GroupSamples(const std::vector<FileSamples>& files, const ProfileOptions& options,
                          ProfiledCosts* result) {
  SampleGroups all;
  RankGroups by_rank;
  std::set<int> ranks;
  int world = 0;
  for (const FileSamples& file : files) {
    const int warmup = WarmupOf(file, options);
    if (file.one_stage && options.plan && file.world_size > 0 &&
        file.world_size != options.plan->ranks) {
      throw Error(file.place + ": names no stage, is of rank " + std::to_string(file.rank) +
                  " of " + std::to_string(file.world_size) + ", and the plan has " +
                  std::to_string(options.plan->ranks) +
                  " ranks, so its stage is not known; give a table with the columns stage, op and "
                  "time (`from` csv)");
    }
    for (const Sample& sample : file.samples) {
      const Instruction& what = sample.what;
      // The stages of a message do not matter, and components cost the same in every stage.
      const bool cell = !IsMessage(what.op) && OperandsOf(what.op) != Operands::kLayer;
      const int rank = sample.rank >= 0 ? sample.rank : file.rank;
      SampleGroup& group = by_rank[options.mean && cell ? rank : -1][{
          what.op, cell ? what.stage : -1, cell ? what.back_stage : -1, what.layer}];
      if (sample.step >= 0 && sample.step < warmup) {
        ++group.warmup;
      } else {
        group.times.push_back(sample.time);
      }
      if (cell) all.stages = std::max({all.stages, what.stage + 1, what.back_stage + 1});
    }
    for (const auto& [name, count] : file.unmapped) result->unmapped[name] += count;
    for (const std::string& note : file.notes) AddNote(note, result);
    if (file.rank >= 0) ranks.insert(file.rank);
    world = std::max(world, file.world_size);
    all.layers = std::max(all.layers, file.layers);
  }
  KeepSlowestCopies(options, &by_rank, result);
  for (auto& [rank, groups] : by_rank) {
    for (auto& [key, group] : groups) {
      SampleGroup& whole = all.of[key];
      whole.times.insert(whole.times.end(), group.times.begin(), group.times.end());
      whole.warmup += group.warmup;
    }
  }
  std::erase_if(all.of, [](const auto& entry) { return entry.second.times.empty(); });
  if (!ranks.empty() && static_cast<int>(ranks.size()) < world) {
    AddNote(
        "traces of ranks " + ListOf({ranks.begin(), ranks.end()}) + " of " + std::to_string(world),
        result);
  }
  if (!options.plan) return all;
  if (all.stages > options.plan->stages) {
    throw Error("the profile has a stage " + std::to_string(all.stages - 1) +
                ", and the plan has " + std::to_string(options.plan->stages) +
                " stages; is it of another run?");
  }
  if (all.stages > 0) all.stages = options.plan->stages;
  return all;
}

int WarmupOf(const FileSamples& file, const ProfileOptions& options) {
  int last = 0;
  for (const Sample& sample : file.samples) last = std::max(last, sample.step);
  if (options.warmup > last && !file.samples.empty()) {
    throw Error(file.place + ": has " + std::to_string(last + 1) +
                (last == 0 ? " step" : " steps") + ", and `warmup` leaves none; give less");
  }
  return options.warmup >= 0 ? options.warmup : last > 0 ? 1 : 0;
}

double QuantileOf(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

double TypicalOf(std::vector<double> times, bool mean) {
  if (mean) {
    return std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
  }
  std::sort(times.begin(), times.end());
  return QuantileOf(times, 0.5);
}

std::string ListOf(const std::vector<int>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(numbers[i]);
    if (last > i) text += "-" + std::to_string(numbers[last]);
    i = last + 1;
  }
  return text;
}

void AddNote(const std::string& text, ProfiledCosts* result) {
  if (std::find(result->notes.begin(), result->notes.end(), text) == result->notes.end()) {
    result->notes.push_back(text);
  }
}

}  // namespace contraflow
