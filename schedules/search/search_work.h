#pragma once

#include <cstdint>
#include <string_view>

#include "compiler/plan/spec.h"

namespace contraflow {

/// Whether the search is to end with what it has.
bool Stopped(const SearchOptions& options);

/// The clock of a search: counts evaluated instructions, so that a search ends at the same place on
/// every machine. Asked often, reports now and then.
class SearchWork {
 public:
  /// Instructions that count as a second of budget.
  static constexpr int64_t kPerSecond = 20'000'000;

  explicit SearchWork(const SearchOptions& options);

  /// Counts so many instructions as evaluated. False once the budget is spent or the search is to
  /// stop; then the caller ends with what it has.
  bool Spend(int64_t instructions);
  bool spent() const { return over_; }
  int64_t left() const;  ///< instructions; 0 when over

  void Enter(std::string_view phase) { state_.phase = phase; }
  void Found(Time makespan, Time bound);

 private:
  const SearchOptions& options_;
  SearchState state_;
  int64_t total_ = 0, done_ = 0, next_report_ = 0;
  bool over_ = false;
};

}  // namespace contraflow
