#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compiler/files/json.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/units.h"

namespace contraflow {

/// Limits on the figures of a plan; times in units of their own or in that of its costs. A limit
/// that is not there does not count.
struct Limits {
  std::optional<GivenTime> max_bubble, max_makespan, max_exposed;
  std::optional<double> max_bubble_ratio, max_gap;
  std::optional<double> max_memory;  ///< of activations, as a multiple of what 1F1B holds
  std::optional<int64_t> max_activations, max_bytes;
  bool formula = false;  ///< every rank's bubble is that of the published formula

  int count() const;
  /// These, and where they say nothing `other`.
  Limits Over(const Limits& other) const;
};

/// A file of limits: those of every plan, and those of single plans, which go before.
struct LimitsFile {
  std::string place;  ///< its path
  Limits all;
  /// Limits by the path of the plan, however it is written, or the last parts of it.
  std::map<std::string, Limits> plans;

  /// The key in `plans` of each plan of a call, or "": the path as it is given, the same path
  /// written otherwise or, of those that are its last parts, the longest. Throws Error if that does
  /// not tell which plan is meant.
  std::vector<std::string> KeysOf(const std::vector<std::string>& paths) const;
  /// Limits of every plan and, with a key, of the one plan.
  Limits Of(const std::string& key) const;
};

/// Reads `{"max_makespan": "4.1s", "max_bytes": "80GB", "plans": {"a.json": {..}}}`, with
/// comments. Throws Error with the place in the file.
LimitsFile ReadLimits(const std::string& text, const std::string& path);

/// Result of one limit.
struct LimitResult {
  std::string limit;   ///< "max_bubble"; "sound" for the proof, "golden" for the comparison
  std::string broken;  ///< the flaw, or ""
  std::optional<double> value = {}, bound = {};
  std::string held = {};  ///< "makespan 4.02 s, at most 4.5 s"; "" without a bound
};

/// Result of a plan.
struct Verdict {
  std::string plan;  ///< its path
  std::vector<LimitResult> results;

  bool holds() const;
};

/// Compares a sound plan with limits, each a result. Throws UsageError for a malformed limit, Error
/// for a limit of a figure that the plan or its costs lack.
std::vector<LimitResult> Judge(const Plan& plan, const CostModel& costs, const Limits& limits,
                               const std::string& path);

/// The object of `check --json`.
Json VerdictsToJson(const std::vector<Verdict>& verdicts);
/// A JUnit report: a test suite a plan, a test case a limit.
std::string WriteJunit(const std::vector<Verdict>& verdicts);
/// Workflow commands of GitHub Actions: an error for each limit that is broken.
std::string WriteAnnotations(const std::vector<Verdict>& verdicts);

}  // namespace contraflow
