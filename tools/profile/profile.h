#pragma once

// Measured times of real runs, as a cost file.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/cost.h"
#include "compiler/plan/plan.h"
#include "tools/profile/samples.h"

namespace contraflow {

enum class ProfileForm : uint8_t { kKineto, kMegatronLog, kNvtxCsv, kTrace, kCsv };
/// "kineto|megatron-log|nvtx-csv|trace|csv"
inline constexpr const char* kProfileForms = "kineto|megatron-log|nvtx-csv|trace|csv";
std::string_view Name(ProfileForm form);
/// Throws Error with the known names.
ProfileForm ParseProfileForm(std::string_view name);

struct ProfileOptions {
  std::optional<ProfileForm> from = {};  ///< nothing: as the content of each file says
  /// The plan that ran, if it is known: it says how many stages and micro-batches there are, and
  /// its costs what the profile cannot: bytes.
  const Plan* plan = nullptr;
  LogShape log = {};   ///< without a plan
  double split = 0.5;  ///< share of b in a full backward, where that alone was timed
  int warmup = -1;     ///< steps to leave out of each file; -1: the first, of two or more
  /// Means in place of medians: what a run took adds up, its outliers with it. Among ranks with
  /// copies of the same stages only the slowest counts, as the others wait for it.
  bool mean = false;
};

/// One line of what was measured, in microseconds.
struct ProfiledRow {
  std::string what;                      ///< "F", "attn_f", "message"
  int stage = -1;                        ///< -1: every stage
  int64_t samples = 0, warmup = 0;       ///< that count, and that were left out
  double low = 0, median = 0, high = 0;  ///< quartiles
};

/// Costs in microseconds, of the medians or means, and what they rest on.
struct ProfiledCosts {
  CostModel costs;
  std::vector<ProfiledRow> rows;
  std::vector<std::string> notes;           ///< assumptions and missing facts
  std::map<std::string, int64_t> unmapped;  ///< names that mean nothing here, and how often
};

/// Reads a file, packed with gzip or not; "-" is standard input. Throws Error for one that cannot
/// be read, is over its limits or in none of the forms.
FileSamples ReadProfile(const std::string& path, const ProfileOptions& options);
/// Like ReadProfile, of its content.
FileSamples ReadProfileText(std::string_view text, const std::string& place,
                            const ProfileOptions& options);

/// Costs by stage, or by component where the profiles have these alone. Several files are several
/// ranks of one run, or replicas: what they say of one stage is put together. Throws Error if they
/// have nothing that costs can be made of.
ProfiledCosts CostsOfSamples(const std::vector<FileSamples>& files, const ProfileOptions& options);

/// Both for all files of a run.
ProfiledCosts Profile(const std::vector<std::string>& paths, const ProfileOptions& options = {});

/// A table of what was measured, and what is to be known about it.
std::string ProfileText(const ProfiledCosts& profile);

}  // namespace contraflow
