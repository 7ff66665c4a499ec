// Prices of time. Let each moment of a rank have a price. Every micro-batch pays for the time that
// it takes on its way through all stages and back, and cannot pay less than on the cheapest way. If
// that, times the number of micro-batches, is more than what all moments up to T cost together, no
// step is as short as T. All ranks are looked at together, and what holds for some of them alone
// holds for the step.
//
// An overlapped pair takes less time than its parts. It is paid by two: the forward pays a third
// price, phi, of the moment at which a pair of these two stages starts, and the backward what the
// pair's time costs less phi. What one gains by phi the other loses, so any phi will do.
//
// This is the Lagrangian dual of the time-indexed linear programme of the step (Christofides,
// Alvarez-Valdes and Tamarit 1987 relax resources of scheduling alike), and weak duality is the
// proof: prices need not be the best ones. The search for good ones climbs along the use that
// micro-batches make of what is scarce, where they are spread over all cheap ways by a temperature
// that sinks. Whether T is refuted is decided without temperature.

#include "compiler/bound/prices.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "compiler/bound/payment.h"

namespace contraflow::pricing {
namespace {

/// By how much prices must refute a makespan, against rounding.
constexpr double kMargin = 1e-9;
/// How soon the first prices sink as a rank has less to do.
constexpr double kScarcity = 20;
/// Known prices that are kept.
constexpr size_t kKept = 6;
/// Rounds of a search with fewer of which nothing is found.
constexpr int64_t kFewestRounds = 50;
/// Rounds from one trial without temperature to the next.
constexpr int64_t kTrial = 20;
/// Inverse temperature at the beginning, in parts of what all prices come to, and the logarithm of
/// its growth.
constexpr double kWarm = 100, kCooling = 4.6;
/// Of the logarithm of a price in one step, and what of that is left in the end; the same of phi,
/// in mean prices. Steps follow a mean of slopes, over their mean square (Adam, arXiv 1412.6980).
constexpr double kStride = 0.02, kLastStride = 0.1, kPhiStride = 10;
constexpr double kMeanOf = 0.9, kSquareOf = 0.99, kTiny = 1e-9;

/// Climbs to better prices.
class PriceSearch {
 public:
  PriceSearch(const Question& question, Payment* payment, Prices* prices)
      : prices_(*prices), payment_(*payment), mean_(Blank(question)), square_(mean_) {
    for (const Way& way : question.ways) count_ += way.count;
  }

  /// True if prices that refute the makespan are found within so many rounds.
  bool Refute(int64_t rounds) {
    double mean_left = 1, square_left = 1, cold = kWarm;
    for (round_ = 0; round_ < rounds; ++round_) {
      if (round_ % kTrial == 0 && payment_.Of(prices_, 0) > 1 + kMargin) return true;
      if (payment_.Of(prices_, cold * count_) >= kNoWay) return true;  // there is no way at all
      mean_left *= kMeanOf;
      square_left *= kSquareOf;
      mean_part_ = 1 - mean_left;
      square_part_ = 1 - square_left;
      const double done = static_cast<double>(round_) / static_cast<double>(rounds);
      stride_ = kStride * (1 - (1 - kLastStride) * done);
      Climb(payment_.Use());
      cold *= 1 + kCooling / static_cast<double>(rounds);
    }
    return payment_.Of(prices_, 0) > 1 + kMargin;
  }

  int64_t rounds() const { return round_ + 1; }

 private:
  /// Along what is used of what there is, one of each slot.
  void Climb(const Prices& use) {
    const auto slots = static_cast<double>(prices_.time.size());
    double all = 0;
    for (size_t i = 0; i < prices_.time.size(); ++i) {
      double& price = prices_.time[i];
      const double stride = Stride((use.time[i] - 1) * price, &mean_.time[i], &square_.time[i]);
      const double half = std::clamp(stride / 2, -0.25, 0.25);
      price = std::max(price, kTiny / slots) * (1 + half) / (1 - half);
      all += price;
    }
    for (size_t i = 0; i < prices_.phi.size(); ++i) {
      prices_.phi[i] +=
          kPhiStride / slots * Stride(use.phi[i] / slots, &mean_.phi[i], &square_.phi[i]);
    }
    // All time together costs 1.
    for (double& price : prices_.time) price /= all;
    for (double& price : prices_.phi) price /= all;
  }

  double Stride(double slope, double* mean, double* square) const {
    *mean = kMeanOf * *mean + (1 - kMeanOf) * slope;
    *square = kSquareOf * *square + (1 - kSquareOf) * slope * slope;
    return stride_ * (*mean / mean_part_) / (std::sqrt(*square / square_part_) + kTiny);
  }

  Prices& prices_;
  Payment& payment_;
  Prices mean_, square_;  ///< of slopes
  double count_ = 0;
  double stride_ = 0, mean_part_ = 0, square_part_ = 0;
  int64_t round_ = 0;
};

/// Slots in which a rank can be busy, and what part of them it is at least.
struct Busy {
  size_t from = 0, to = 0;
  double part = 0;
};

std::vector<Busy> BusyOf(const Question& question) {
  std::vector<Busy> busy(question.ranks, {question.slots, 0, 0});
  for (const Way& way : question.ways) {
    size_t rest = 0;  // of the way
    for (const Visit& visit : way.visits) rest += visit.modes.front().advance;
    size_t from = 0;
    for (const Visit& visit : way.visits) {
      if (visit.modes.front().timed) {
        Busy& rank = busy[visit.rank];
        rank.from = std::min(rank.from, std::min(from, question.slots - 1));
        const size_t after = rest - visit.modes.front().advance;
        // Rests may come last.
        const bool last = !visit.weight.spans.empty() || after >= question.slots;
        rank.to = std::max(rank.to, last ? question.slots : question.slots - after);
        double least = kNoWay;
        for (const Mode& mode : visit.modes) {
          double length = mode.length;
          if (mode.rest) length += visit.weight.length;
          if (mode.pair >= 0) length /= 2;
          least = std::min(least, length);
        }
        rank.part += way.count * visit.share * least;
      }
      from += visit.modes.front().advance;
      rest -= visit.modes.front().advance;
    }
  }
  for (Busy& rank : busy) {
    if (rank.to > rank.from) rank.part /= static_cast<double>(rank.to - rank.from);
  }
  return busy;
}

/// What says of each rank alone how long the step takes, most for the ranks that are busiest; both
/// halves of a pair pay alike.
Prices FirstPrices(const Question& question) {
  Prices prices = Blank(question);
  const std::vector<Busy> busy = BusyOf(question);
  double most = 0, all = 0;
  for (const Busy& rank : busy) most = std::max(most, rank.part);
  for (size_t r = 0; r < busy.size(); ++r) {
    const auto& [from, to, part] = busy[r];
    const double idle = kScarcity * (1 - part / most);
    const double scarce = 1 / (1 + idle * (1 + idle / 2 * (1 + idle / 3)));
    double* time = &prices.time[r * question.slots];
    for (size_t k = from; k < to; ++k) time[k] = scarce;
    all += scarce * static_cast<double>(to > from ? to - from : 0);
  }
  for (double& price : prices.time) price /= all;
  for (const Way& way : question.ways) {
    for (const Visit& visit : way.visits) {
      for (const Mode& mode : visit.modes) {
        if (mode.pair < 0 || !mode.timed) continue;
        const double* time = &prices.time[visit.rank * question.slots];
        double* phi = &prices.phi[static_cast<size_t>(mode.pair) * question.slots];
        for (size_t k = 0; k < question.slots; ++k) {
          phi[k] = visit.share * time[k] * mode.length / 2;
        }
      }
    }
  }
  return prices;
}

int64_t SizeOf(const Question& question) {
  size_t modes = 0;
  for (const Way& way : question.ways) {
    for (const Visit& visit : way.visits) modes += 1 + visit.modes.size();
  }
  return std::max<int64_t>(1, static_cast<int64_t>(modes * question.slots));
}

}  // namespace
}  // namespace contraflow::pricing

namespace contraflow {

bool PriceProof::Refutes(const PricedStep& step, Time makespan, int64_t rounds, int64_t work) {
  using namespace pricing;
  const Question question = Ask(step, makespan - 1, slot_);
  const int64_t size = SizeOf(question);
  work_ += size / 4;
  Payment payment(question);
  const Prices* best = nullptr;
  double most = 0;
  for (size_t i = 0; i < known_.size(); ++i) {
    if (known_[i].time.size() != question.ranks * question.slots) continue;
    if (known_[i].phi.size() != question.pairs * question.slots) continue;
    work_ += size / 2;
    const double paid = payment.Of(known_[i], 0);
    if (paid > 1 + kMargin) {
      std::rotate(known_.begin(), known_.begin() + static_cast<std::ptrdiff_t>(i),
                  known_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      return true;
    }
    if (paid <= most) continue;
    most = paid;
    best = &known_[i];
  }
  rounds = std::min(rounds, work / size);
  if (rounds < kFewestRounds) return false;
  Prices prices = best != nullptr ? *best : FirstPrices(question);
  PriceSearch search(question, &payment, &prices);
  const bool refutes = search.Refute(rounds);
  work_ += size * search.rounds();
  if (!refutes && best != nullptr) return false;
  known_.insert(known_.begin(), std::move(prices));
  if (known_.size() > kKept) known_.pop_back();
  return refutes;
}

}  // namespace contraflow
