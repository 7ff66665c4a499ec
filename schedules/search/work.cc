#include "schedules/search/work.h"

#include <algorithm>
#include <utility>

namespace contraflow {
namespace {

constexpr int64_t kNanoseconds = 1'000'000'000;
/// Reports while the budget is spent evenly.
constexpr int64_t kReports = 100;

}  // namespace

SearchWork::SearchWork(const SearchOptions& options, SearchControl control)
    : control_(std::move(control)) {
  const int64_t budget = std::max<int64_t>(options.budget, 0);
  // In two parts, since the product of both factors need not fit. A week is more than anyone waits.
  const int64_t seconds = std::min<int64_t>(budget / kNanoseconds, 7 * 24 * 3600);
  total_ = seconds * kPerSecond + budget % kNanoseconds * kPerSecond / kNanoseconds;
  over_ = total_ == 0;
  next_report_ = total_ / kReports;
}

SearchWork::SearchWork(SearchWork* whole, int64_t instructions)
    : whole_(whole), total_(std::max<int64_t>(instructions, 0)), over_(total_ == 0) {
  control_.stop = whole->control_.stop;
  control_.made = whole->control_.made;
}

bool SearchWork::Spend(int64_t instructions) {
  done_ += instructions;
  if (done_ >= total_) over_ = true;
  if (whole_ != nullptr) return whole_->Spend(instructions) && !over_;
  if (control_.stopped()) over_ = true;
  if (control_.report && done_ >= next_report_) {
    next_report_ = done_ + std::max<int64_t>(total_ / kReports, 1);
    Report();
  }
  return !over_;
}

void SearchWork::Report() {
  if (!control_.report || total_ == 0) return;
  state_.spent = static_cast<double>(done_) / static_cast<double>(total_);
  control_.report(state_);
}

int64_t SearchWork::left() const { return spent() ? 0 : total_ - done_; }

void SearchWork::Enter(std::string_view phase) {
  if (whole_ != nullptr) return whole_->Enter(phase);
  state_.phase = phase;
}

void SearchWork::Found(Time makespan, Time bound) {
  if (whole_ != nullptr) return whole_->Found(makespan, bound);
  if (state_.makespan > 0 && makespan > state_.makespan) return;
  state_.makespan = makespan;
  state_.bound = bound;
  if (control_.report) control_.report(state_);
}

}  // namespace contraflow
