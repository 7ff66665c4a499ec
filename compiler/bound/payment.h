#pragma once

// What the search for prices (prices.cc) is about, and nobody else includes.

#include <cstddef>
#include <utility>
#include <vector>

#include "compiler/bound/prices.h"

namespace contraflow::pricing {

inline constexpr double kNoWay = 1e30;  ///< a cost where there is none

/// A place in a table of sums by slot, so far behind the place of a slot.
struct Offset {
  size_t slots = 0;
  double part = 0;  ///< of the way to the next entry

  double Of(const double* sums) const {
    return sums[slots] + part * (sums[slots + 1] - sums[slots]);
  }
  void Add(double value, double* sums) const {
    sums[slots] += (1 - part) * value;
    sums[slots + 1] += part * value;
  }
};

/// One way in which an operation may run.
struct Mode {
  size_t advance = 0;  ///< slots until what follows may start
  size_t end = 0;      ///< slots until it ends, at the earliest
  size_t starts = 0;   ///< how many slots it may start in, from the first on
  bool timed = true;   ///< it pays for time
  bool rest = false;   ///< the weight gradient is still to come, no sooner than `end`
  int pair = -1;       ///< whose phi it pays (a forward) or gets (a backward); -1: none
  double length = 0;   ///< in slots
  /// Starts in a slot, with their ends, between which what it costs is linear.
  std::vector<std::pair<Offset, Offset>> spans = {};
};

/// The F or the B of a stage.
struct Visit {
  size_t rank = 0;
  double share = 1;  ///< of the rank's time that it takes
  std::vector<Mode> modes = {};
  Mode weight = {};  ///< the rest, by the slot in which it may start
};

/// All visits of a micro-batch, in order.
struct Way {
  double count = 0;  ///< micro-batches
  std::vector<Visit> visits;
};

/// Whether a step may be as short as a makespan.
struct Question {
  size_t ranks = 0, pairs = 0, slots = 0;
  std::vector<Way> ways;
};

/// Whether a step of these ranks may take no more than `horizon`, in slots of so many ticks.
Question Ask(const PricedStep& step, Time horizon, Time slot);

/// Prices of nothing.
Prices Blank(const Question& question);

/// What micro-batches pay at some prices, and what they use.
class Payment {
 public:
  explicit Payment(const Question& question);

  /// The least that all pay together; with `cold` > 0 smoothed, by an inverse temperature.
  double Of(const Prices& prices, double cold);
  /// How what Of gave with `cold` grows with each price.
  const Prices& Use();

 private:
  size_t entries() const { return slots_ + 1; }
  void SumUp(const std::vector<double>& prices);
  double Least(double a, double b) const;
  void CostsOf(const Visit& visit, const Mode& mode, const Prices& prices, const double* weights,
               double* costs) const;
  void WeightsOf(const Visit& visit, const Prices& prices, double* weights);
  double Forward(const Way& way, const Prices& prices);
  void Backward(const Way& way);
  void Flow(const Visit& visit, const Mode& mode, size_t o, size_t at);
  void FlowOfRest(const Visit& visit, const double* weights);
  void Use(const Visit& visit, const Mode& mode, size_t u, double part);

  const Question& question_;
  const size_t slots_, width_;
  double cold_ = 0;
  Prices use_;
  std::vector<double> sums_, slopes_;  ///< by rank, before each slot
  /// By visit and slot: the least for those that come to it, for those that are there, and for the
  /// rest that begins no earlier.
  std::vector<double> arrive_, reach_, weights_, flow_;
  std::vector<double> costs_;  ///< by mode and slot
  std::vector<double> rest_costs_, rest_flow_;
};

}  // namespace contraflow::pricing
