#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"

namespace contraflow {

/// Worth of a plan: the least excess over the memory of a spec, then the shorter step, is better,
/// and less.
struct Worth {
  int64_t excess = 0;
  Time step = 0;

  auto operator<=>(const Worth&) const = default;
};
Worth WorthOfPlan(const Plan& plan, const Spec& spec);

/// The best plan so far for a spec, and the only way for one to become it; of equals the first.
class Incumbent {
 public:
  explicit Incumbent(Spec spec) : spec_(std::move(spec)) {}

  /// Takes the plan if it is better. True if it is the incumbent now.
  bool Offer(Plan plan);
  /// Calls what makes or offers plans. False if it throws an Error, which is kept as the reason why
  /// there is no plan.
  bool Attempt(const std::function<void()>& step);
  /// Makes a plan and offers it. False if that fails.
  bool Try(const std::function<Plan()>& make);
  /// Raises the bound of the best plan if it is one of this placement and as long.
  void Raise(const std::string& placement, Time bound);
  /// Keeps the last reason why there is no plan.
  void Refuse(const Error& why) { why_not_ = why; }

  bool any() const { return best_.has_value(); }
  bool fits() { return any() && worth().excess == 0; }
  /// Returns the worth of the best plan, which there is.
  const Worth& worth();
  const Plan& plan() const { return *best_; }
  const std::optional<Error>& why_not() const { return why_not_; }

  /// Throws the last reason where there is no plan or, with `possible` false, none that fits.
  Plan Take(bool possible = true);

 private:
  const Spec spec_;
  std::optional<Plan> best_;
  std::optional<Worth> worth_;  // none until it is asked for: a plan alone need not be judged
  std::optional<Error> why_not_;
};

}  // namespace contraflow
