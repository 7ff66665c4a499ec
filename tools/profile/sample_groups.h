#pragma once

// Samples of files, put together by what they are of.

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/profile/profile.h"

namespace contraflow {

/// Key of a group of samples; -1 for a field that the instruction does not have.
struct SampleKey {
  Op op;
  int stage, back_stage, layer;

  auto operator<=>(const SampleKey&) const = default;
};

struct SampleGroup {
  std::vector<double> times;
  int64_t warmup = 0;
};

/// Groups that count, by what they are of; each has some.
struct SampleGroups {
  std::map<SampleKey, SampleGroup> of;
  int stages = 0;  ///< of the profile, or of the plan; 0: all that was timed is of every stage
  int layers = 0;  ///< of a chunk; 0: not known
};

/// Groups the samples, without warm-up steps. For means, only the slowest of ranks with copies of a
/// stage counts. Adds notes and unmapped names to `result`.
SampleGroups GroupSamples(const std::vector<FileSamples>& files, const ProfileOptions& options,
                          ProfiledCosts* result);

/// How many steps of a file are warm-up. Throws Error if that leaves none.
int WarmupOf(const FileSamples& file, const ProfileOptions& options);

/// Quantile of sorted times, interpolated linearly.
double QuantileOf(const std::vector<double>& sorted, double share);

/// Value that stands for times of one thing: their median, or their mean.
double TypicalOf(std::vector<double> times, bool mean);

/// "3", "0, 2-5"
std::string ListOf(const std::vector<int>& numbers);

/// Says it once.
void AddNote(const std::string& text, ProfiledCosts* result);

}  // namespace contraflow
