#include "schedules/search/search_work.h"

#include <algorithm>

namespace contraflow {
namespace {

constexpr int64_t kNanoseconds = 1'000'000'000;
/// Reports while the budget is spent evenly.
constexpr int64_t kReports = 100;

}  // namespace

bool Stopped(const SearchOptions& options) {
  return options.stop != nullptr && options.stop->load(std::memory_order_relaxed);
}

SearchWork::SearchWork(const SearchOptions& options) : options_(options) {
  const int64_t budget = std::max<int64_t>(options.budget, 0);
  // In two parts, since the product of both factors need not fit. A week is more than anyone waits.
  const int64_t seconds = std::min<int64_t>(budget / kNanoseconds, 7 * 24 * 3600);
  total_ = seconds * kPerSecond + budget % kNanoseconds * kPerSecond / kNanoseconds;
  over_ = total_ == 0;
  next_report_ = total_ / kReports;
}

bool SearchWork::Spend(int64_t instructions) {
  done_ += instructions;
  if (done_ >= total_) over_ = true;
  if (Stopped(options_)) over_ = true;
  if (options_.report && done_ >= next_report_) {
    next_report_ = done_ + std::max<int64_t>(total_ / kReports, 1);
    state_.spent = std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
    options_.report(state_);
  }
  return !over_;
}

int64_t SearchWork::left() const { return over_ ? 0 : total_ - done_; }

void SearchWork::Found(Time makespan, Time bound) {
  state_.makespan = makespan;
  state_.bound = bound;
  if (options_.report) options_.report(state_);
}

}  // namespace contraflow
