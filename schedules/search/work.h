#pragma once

#include <cstdint>
#include <string_view>

#include "compiler/plan/spec.h"
#include "schedules/search/search_control.h"

namespace contraflow {

/// The clock of a search: counts evaluated instructions, so that a search ends at the same place on
/// every machine. Asked often, reports now and then.
class SearchWork {
 public:
  /// Instructions that count as a second of budget.
  static constexpr int64_t kPerSecond = 20'000'000;
  /// Time of one instruction.
  static constexpr int64_t kNanosecondsEach = 1'000'000'000 / kPerSecond;

  /// The clock of a whole search.
  explicit SearchWork(const SearchOptions& options, SearchControl control = {});
  /// A part of a search: ends after `instructions`, or when the whole does, which counts them too
  /// and must outlive it.
  SearchWork(SearchWork* whole, int64_t instructions);

  /// Counts this many instructions as evaluated. False once the budget is spent or the search is to
  /// stop; then the caller ends with the best so far.
  bool Spend(int64_t instructions);
  bool spent() const { return over_ || (whole_ != nullptr && whole_->spent()); }
  /// Instructions; 0 when over. The instructions of a part do not depend on the whole: a part that
  /// is cut short has done the same work up to there.
  int64_t left() const;
  int64_t done() const { return done_; }

  /// True if the caller has asked the search to stop.
  bool stopped() const { return control_.stopped(); }
  const SearchControl& control() const { return control_; }

  /// Reports how much of the budget is spent, of a whole search.
  void Report();
  void Enter(std::string_view phase);
  void Found(Time makespan, Time bound);

 private:
  SearchWork* whole_ = nullptr;
  SearchControl control_;
  SearchState state_;
  int64_t total_ = 0, done_ = 0, next_report_ = 0;
  bool over_ = false;
};

}  // namespace contraflow
