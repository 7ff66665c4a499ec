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
//
// Time is cut into slots of the same length, and an operation is known by the slot in which it
// starts. The slots of an operation are put off against those of the one before it by what that and
// the hop take, so that a way without pairs takes a whole number of them; in a pair an operation is
// taken for up to a slot shorter. What an operation costs is the least for any
// start within its slot. Both only lower the bound. Sums have no more than some
// millions of terms, so that rounding is far below kMargin.

#include "compiler/bound/prices.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

constexpr double kNone = 1e30;  ///< no way
/// By how much prices must refute a makespan, against rounding.
constexpr double kMargin = 1e-9;
/// By how much the logarithm of the first prices is lower on a rank that has nothing to do.
constexpr double kScarcity = 20;
/// Known prices that are kept.
constexpr size_t kKept = 6;
/// Rounds from one trial without temperature to the next.
constexpr int64_t kTrial = 20;
/// Inverse temperature at the beginning, in parts of what all prices come to, and the logarithm of
/// its growth.
constexpr double kWarm = 100, kCooling = 4.6;
/// Of the logarithm of a price in one step, and what of that is left in the end; the same of phi,
/// in mean prices. Steps follow a mean of slopes, over their mean square (Adam, arXiv 1412.6980).
constexpr double kStride = 0.02, kLastStride = 0.1, kPhiStride = 10;
constexpr double kMeanOf = 0.9, kSquareOf = 0.99, kTiny = 1e-9;

/// log(1 + exp(-x)), exp(-x) and 1 / (1 + exp(x)) for x >= 0, from tables: those of a C library
/// need not be the same everywhere.
class Tables {
 public:
  Tables() {
    double power = 1;
    for (size_t i = 0; i < kSize; ++i) {
      exp_[i] = power;
      // log(1 + y) = 2 artanh(y / (2 + y))
      const double z = power / (2 + power);
      double sum = 0, term = z;
      for (int k = 1; k < 40; k += 2) {
        sum += term / k;
        term *= z * z;
      }
      log_[i] = 2 * sum;
      share_[i] = power / (1 + power);
      power *= kStepDown;
    }
  }
  double Exp(double x) const { return Of(exp_, x); }
  double Log(double x) const { return Of(log_, x); }
  /// For any x.
  double Share(double x) const { return x >= 0 ? Of(share_, x) : 1 - Of(share_, -x); }

 private:
  static constexpr size_t kSize = 1024;
  static constexpr double kPerUnit = 32;
  static constexpr double kStepDown = 0.969233234476344081848103;  // exp(-1/32)

  static double Of(const std::array<double, kSize>& table, double x) {
    const double at = x * kPerUnit;
    if (at >= static_cast<double>(kSize - 1)) return 0;
    const auto i = static_cast<size_t>(at);
    return table[i] + (at - static_cast<double>(i)) * (table[i + 1] - table[i]);
  }
  std::array<double, kSize> exp_{}, log_{}, share_{};
};

const Tables& tables() {
  static const Tables made;
  return made;
}

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
  size_t starts = 0;   ///< how many slots it may start in, from the first on
  bool timed = true;   ///< it pays for time
  bool rest = false;   ///< the weight gradient is still to come, `advance` slots later
  int pair = -1;       ///< whose phi it pays (a forward) or gets (a backward); -1: none
  size_t end = 0;      ///< slots until it ends, at the earliest
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

class Asking {
 public:
  Asking(const PricedStep& step, Time horizon, Time slot)
      : step_(step), horizon_(horizon), slot_(slot) {}

  Question Ask() {
    Question question;
    question.ranks = static_cast<size_t>(step_.ranks);
    question.slots = static_cast<size_t>((horizon_ + slot_ - 1) / slot_);
    NumberPairs();
    question.pairs = pairs_.size();
    for (size_t r = 0; r < step_.routes.size(); ++r) {
      if (step_.routes[r].microbatches > 0) question.ways.push_back(WayOf(r));
    }
    return question;
  }

 private:
  struct Kind {
    size_t route = 0, stage = 0, back_route = 0, back = 0;
  };

  const PricedStage& At(size_t route, size_t stage) const {
    return step_.routes[route].stages[stage];
  }
  static Time Full(const StageCost& cost) { return std::min(cost.bw, cost.b + cost.w); }
  /// As CostModel::Duration has it.
  static Time OfPair(const StageCost& cost, const StageCost& back) {
    const Time saving = std::min(cost.f + cost.bw - cost.fb, back.f + back.bw - back.fb);
    return std::max({cost.f, back.b, cost.f + back.bw - saving});
  }
  Time OfPair(const Kind& kind) const {
    return OfPair(At(kind.route, kind.stage).cost, At(kind.back_route, kind.back).cost);
  }

  /// Those that are shorter than their parts.
  void NumberPairs() {
    for (size_t route = 0; route < step_.routes.size(); ++route) {
      for (size_t s = 0; s < step_.routes[route].stages.size(); ++s) {
        for (size_t other = 0; other < step_.routes.size(); ++other) {
          for (size_t back = 0; back < step_.routes[other].stages.size(); ++back) {
            const Kind kind = {route, s, other, back};
            const PricedStage &ahead = At(route, s), &behind = At(other, back);
            if (ahead.rank < 0 || ahead.rank != behind.rank) continue;
            if (OfPair(kind) < ahead.cost.f + Full(behind.cost)) pairs_.push_back(kind);
          }
        }
      }
    }
  }

  Offset Place(Time time) const {
    return {static_cast<size_t>(time / slot_),
            static_cast<double>(time % slot_) / static_cast<double>(slot_)};
  }

  /// Of an operation whose slots begin at `offset`, with what follows `hop` later in slots that
  /// begin at `next`.
  Mode ModeOf(Time offset, Time duration, Time hop, Time next) const {
    Mode mode;
    mode.advance = static_cast<size_t>((offset + duration + hop - next) / slot_);
    const Time last = horizon_ - offset - duration;
    mode.starts = last < 0 ? 0 : static_cast<size_t>(last / slot_) + 1;
    mode.end = static_cast<size_t>((offset + duration) / slot_);
    mode.length = static_cast<double>(duration) / static_cast<double>(slot_);
    // A sum is linear between two slots, so the difference is between these and what ends there.
    const Time grid = (offset + duration + slot_ - 1) / slot_ * slot_ - duration;
    for (const Time start : {offset, slot_, grid, offset + slot_}) {
      if (start < offset || start > offset + slot_) continue;
      mode.spans.emplace_back(Place(start), Place(start + duration));
    }
    return mode;
  }

  Visit VisitOf(size_t route, size_t s, bool back, Time offset, Time hop) const {
    const auto& [rank, cost, after] = At(route, s);
    const Time alone = back ? cost.b : cost.f, next = (offset + alone + hop) % slot_;
    Visit visit;
    visit.modes.push_back(ModeOf(offset, alone, hop, next));
    if (rank < 0) {
      visit.modes.back().timed = false;
      return visit;
    }
    visit.rank = static_cast<size_t>(rank);
    visit.share = rank == step_.doubled ? 2 : 1;
    if (back) {
      visit.modes.back().rest = true;
      visit.weight = ModeOf((offset + alone) % slot_, cost.w, 0, 0);
      if (Full(cost) < alone + cost.w) {
        visit.modes.push_back(ModeOf(offset, Full(cost), hop, next));
      }
    }
    for (size_t p = 0; p < pairs_.size(); ++p) {
      const Kind& kind = pairs_[p];
      const bool has = back ? kind.back_route == route && kind.back == s
                            : kind.route == route && kind.stage == s;
      if (!has) continue;
      visit.modes.push_back(ModeOf(offset, OfPair(kind), hop, next));
      visit.modes.back().pair = static_cast<int>(p);
      visit.modes.back().timed = back;
    }
    return visit;
  }

  Way WayOf(size_t route) const {
    Way way = {step_.routes[route].microbatches, {}};
    const size_t stages = step_.routes[route].stages.size();
    Time offset = 0;
    for (size_t o = 0; o < 2 * stages; ++o) {
      const bool back = o >= stages;
      const size_t s = back ? 2 * stages - 1 - o : o;
      Time hop = 0;
      if (back && s > 0) hop = At(route, s - 1).hop;
      if (!back && s + 1 < stages) hop = At(route, s).hop;
      way.visits.push_back(VisitOf(route, s, back, offset, hop));
      const StageCost& cost = At(route, s).cost;
      offset = (offset + (back ? cost.b : cost.f) + hop) % slot_;
    }
    return way;
  }

  const PricedStep& step_;
  const Time horizon_, slot_;
  std::vector<Kind> pairs_;
};

Prices Blank(const Question& question) {
  return {std::vector<double>(question.ranks * question.slots, 0.0),
          std::vector<double>(question.pairs * question.slots, 0.0)};
}

/// What micro-batches pay at some prices, and what they use.
class Payment {
 public:
  explicit Payment(const Question& question)
      : question_(question), slots_(question.slots), width_(2 * slots_ + 4), use_(Blank(question)) {
    sums_.resize(question.ranks * width_);
    slopes_ = sums_;
    size_t visits = 0, modes = 0;
    for (const Way& way : question.ways) {
      visits = std::max(visits, way.visits.size());
      size_t all = 0;
      for (const Visit& visit : way.visits) all += visit.modes.size();
      modes = std::max(modes, all);
    }
    arrive_.resize((visits + 1) * entries());
    reach_ = arrive_;
    weights_.resize(visits * entries());
    costs_.resize(modes * entries());
    spans_.resize(modes * entries());
    flow_.resize((visits + 1) * entries());
  }

  /// The least that all pay together; with `cold` > 0 smoothed, by an inverse temperature.
  double Of(const Prices& prices, double cold) {
    cold_ = cold;
    SumUp(prices.time);
    std::ranges::fill(slopes_, 0.0);
    std::ranges::fill(use_.phi, 0.0);
    double all = 0;
    for (const Way& way : question_.ways) {
      const double least = Forward(way, prices);
      if (least >= kNone) return kNone;
      all += way.count * least;
      if (cold > 0) Backward(way);
    }
    return all;
  }

  /// How what Of gave with `cold` grows with each price.
  const Prices& Use() {
    for (size_t to = 0, from = 0; to < use_.time.size(); to += slots_, from += width_) {
      double sum = 0;
      for (size_t k = width_; k-- > 1;) {
        sum += slopes_[from + k];
        if (k <= slots_) use_.time[to + k - 1] = sum;
      }
    }
    return use_;
  }

 private:
  size_t entries() const { return slots_ + 1; }

  /// Sums of prices before each slot; what is behind the last one is free.
  void SumUp(const std::vector<double>& prices) {
    for (size_t from = 0, to = 0; from < prices.size(); from += slots_, to += width_) {
      double sum = 0;
      for (size_t k = 0; k < width_; ++k) {
        sums_[to + k] = sum;
        if (k < slots_) sum += prices[from + k];
      }
    }
  }

  double Least(double a, double b) const {
    const double low = std::min(a, b), more = std::max(a, b) - low;
    return cold_ > 0 ? low - tables().Log(more * cold_) / cold_ : low;
  }

  /// Of a mode for each slot in which it may start, and at which of its spans.
  void CostsOf(const Visit& visit, const Mode& mode, const Prices& prices, const double* weights,
               double* costs, uint8_t* spans) const {
    const double* time = &sums_[visit.rank * width_];
    const double* phi =
        mode.pair < 0 ? nullptr : &prices.phi[static_cast<size_t>(mode.pair) * slots_];
    for (size_t u = 0; u < mode.starts; ++u) {
      double cost = 0;
      if (mode.timed) {
        cost = kNone;
        for (size_t i = 0; i < mode.spans.size(); ++i) {
          const double here = mode.spans[i].second.Of(time + u) - mode.spans[i].first.Of(time + u);
          if (here >= cost) continue;
          cost = here;
          spans[u] = static_cast<uint8_t>(i);
        }
        cost *= visit.share;
      }
      if (phi != nullptr) cost += mode.timed ? -phi[u] : phi[u];
      if (mode.rest) {
        const size_t from = u + mode.end;
        cost += from < slots_ ? weights[from] : kNone;
      }
      costs[u] = cost;
    }
  }

  double Forward(const Way& way, const Prices& prices) {
    size_t at = 0;  // of a mode among all
    for (size_t o = 0; o <= way.visits.size(); ++o) {
      double* arrive = &arrive_[o * entries()];
      double* reach = &reach_[o * entries()];
      if (o == 0) std::fill(arrive, arrive + entries(), kNone);
      if (o == 0) arrive[0] = 0;
      double least = kNone;
      for (size_t u = 0; u <= slots_; ++u) reach[u] = least = Least(least, arrive[u]);
      if (o == way.visits.size()) return reach[slots_];
      const Visit& visit = way.visits[o];
      double* next = arrive + entries();
      std::fill(next, next + entries(), kNone);
      double* weights = &weights_[o * entries()];
      if (visit.weight.starts > 0) WeightsOf(visit, prices, weights);
      for (const Mode& mode : visit.modes) {
        double* costs = &costs_[at];
        CostsOf(visit, mode, prices, weights, costs, &spans_[at]);
        at += entries();
        for (size_t u = 0; u < mode.starts; ++u) {
          if (reach[u] >= kNone || costs[u] >= kNone || u + mode.advance > slots_) continue;
          double& to = next[u + mode.advance];
          to = Least(to, reach[u] + costs[u]);
        }
      }
    }
    return kNone;
  }

  /// The least that the rest costs from each slot on.
  void WeightsOf(const Visit& visit, const Prices& prices, double* weights) {
    Visit alone = {.rank = visit.rank, .share = visit.share};
    rest_costs_.resize(entries());
    rest_spans_.resize(entries());
    CostsOf(alone, visit.weight, prices, nullptr, rest_costs_.data(), rest_spans_.data());
    double least = kNone;
    for (size_t v = entries(); v-- > 0;) {
      if (v < visit.weight.starts) least = Least(least, rest_costs_[v]);
      weights[v] = least;
    }
  }

  void Backward(const Way& way) {
    std::ranges::fill(flow_, 0.0);
    flow_[way.visits.size() * entries() + slots_] = way.count;
    size_t at = 0;
    for (const Visit& visit : way.visits) at += visit.modes.size() * entries();
    for (size_t o = way.visits.size() + 1; o-- > 0;) {
      const double* arrive = &arrive_[o * entries()];
      const double* reach = &reach_[o * entries()];
      double* flow = &flow_[o * entries()];
      // Of what is in a slot some came to it, and some has waited.
      double waited = 0;
      for (size_t u = entries(); u-- > 0;) {
        const double all = flow[u] + waited;
        const double before = u > 0 ? reach[u - 1] : kNone;
        const double share = all > 0 ? tables().Share((before - arrive[u]) * cold_) : 0;
        waited = all * share;
        flow[u] = all - waited;
      }
      if (o == 0) return;
      const Visit& visit = way.visits[o - 1];
      rest_flow_.assign(entries(), 0.0);
      at -= visit.modes.size() * entries();
      for (size_t i = 0; i < visit.modes.size(); ++i) {
        Flow(visit, visit.modes[i], o, at + i * entries());
      }
      if (visit.weight.starts > 0) FlowOfRest(visit, &weights_[(o - 1) * entries()]);
    }
  }

  /// Adds the use of a mode of the visit before `o`.
  void Flow(const Visit& visit, const Mode& mode, size_t o, size_t at) {
    const double* reach = &reach_[(o - 1) * entries()];
    const double* arrive = &arrive_[o * entries()];
    const double* flow = &flow_[o * entries()];
    double* before = &flow_[(o - 1) * entries()];
    double* phi = mode.pair < 0 ? nullptr : &use_.phi[static_cast<size_t>(mode.pair) * slots_];
    for (size_t u = 0; u < mode.starts && u + mode.advance <= slots_; ++u) {
      const size_t to = u + mode.advance;
      const double cost = costs_[at + u];
      if (flow[to] <= 0 || reach[u] >= kNone || cost >= kNone) continue;
      const double part =
          flow[to] * tables().Exp(std::max(0.0, (reach[u] + cost - arrive[to]) * cold_));
      if (part <= 0) continue;
      before[u] += part;
      if (mode.timed) Use(visit, mode.spans[spans_[at + u]], u, part);
      if (phi != nullptr) phi[u] += mode.timed ? -part : part;
      if (mode.rest) rest_flow_[u + mode.end] += part;
    }
  }

  void FlowOfRest(const Visit& visit, const double* weights) {
    Visit alone = {.rank = visit.rank, .share = visit.share};
    CostsOf(alone, visit.weight, use_, nullptr, rest_costs_.data(), rest_spans_.data());
    double waited = 0;
    for (size_t v = 0; v < visit.weight.starts; ++v) {
      const double all = rest_flow_[v] + waited;
      if (all <= 0) continue;
      const double later = v + 1 < entries() ? weights[v + 1] : kNone;
      waited = all * tables().Share((later - rest_costs_[v]) * cold_);
      Use(visit, visit.weight.spans[rest_spans_[v]], v, all - waited);
    }
  }

  void Use(const Visit& visit, const std::pair<Offset, Offset>& span, size_t u, double part) {
    double* time = &slopes_[visit.rank * width_ + u];
    span.second.Add(visit.share * part, time);
    span.first.Add(-visit.share * part, time);
  }

  const Question& question_;
  const size_t slots_, width_;
  double cold_ = 0;
  Prices use_;
  std::vector<double> sums_, slopes_;  ///< by rank, before each slot
  /// By visit and slot: the least for those that come to it, for those that are there, and for the
  /// rest that begins no earlier.
  std::vector<double> arrive_, reach_, weights_, flow_;
  std::vector<double> costs_;  ///< by mode and slot
  std::vector<uint8_t> spans_;
  std::vector<double> rest_costs_, rest_flow_;
  std::vector<uint8_t> rest_spans_;
};

/// Climbs to better prices.
class PriceSearch {
 public:
  PriceSearch(const Question& question, Prices* prices)
      : prices_(*prices), payment_(question), mean_(Blank(question)), square_(mean_) {
    for (const Way& way : question.ways) count_ += way.count;
  }

  /// True if prices that refute the makespan are found within so many rounds.
  bool Refute(int64_t rounds) {
    double mean_left = 1, square_left = 1, cold = kWarm;
    for (round_ = 0; round_ < rounds; ++round_) {
      if (round_ % kTrial == 0 && payment_.Of(prices_, 0) > 1 + kMargin) return true;
      if (payment_.Of(prices_, cold * count_) >= kNone) return true;  // there is no way at all
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
  Payment payment_;
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
        double least = kNone;
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
    const double scarce = tables().Exp(kScarcity * (1 - part / most));
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
        for (size_t k = 0; k < question.slots; ++k) phi[k] = visit.share * time[k] * mode.length / 2;
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
  return static_cast<int64_t>(modes * question.slots);
}

}  // namespace

PricedStep StepOf(const Plan& frame, const CostModel& costs) {
  CF_ASSERT(costs.microbatch_scale.empty());
  bool mirrored = frame.routes.size() == 2;
  for (size_t s = 0; mirrored && s < static_cast<size_t>(frame.stages); ++s) {
    mirrored = frame.routes[0].ranks[s] + frame.routes[1].ranks[s] == frame.ranks - 1;
  }
  PricedStep step;
  step.ranks = mirrored ? (frame.ranks + 1) / 2 : frame.ranks;
  if (mirrored && frame.ranks % 2 != 0) step.doubled = frame.ranks / 2;
  for (const Route& route : frame.routes) {
    PricedStep::Route& priced = step.routes.emplace_back();
    priced.microbatches = mirrored ? static_cast<double>(frame.microbatches) / 2
                                   : static_cast<double>(route.microbatches.size());
    for (int s = 0; s < frame.stages; ++s) {
      const int rank = route.ranks[static_cast<size_t>(s)];
      const bool moves = s + 1 < frame.stages && route.ranks[static_cast<size_t>(s) + 1] != rank;
      priced.stages.push_back({mirrored ? std::min(rank, frame.ranks - 1 - rank) : rank,
                               costs.stage(s),
                               moves ? costs.comm.latency + costs.comm.occupancy : 0});
    }
    if (mirrored) break;
  }
  return step;
}

bool PriceProof::Refutes(const PricedStep& step, Time makespan, int64_t rounds) {
  const Question question = Asking(step, makespan - 1, slot_).Ask();
  const int64_t size = SizeOf(question);
  const Prices first = FirstPrices(question);
  Payment payment(question);
  std::optional<Prices> best;
  double most = 0;
  for (size_t i = 0; i < known_.size(); ++i) {
    if (known_[i].time.size() != first.time.size() || known_[i].phi.size() != first.phi.size()) {
      continue;
    }
    work_ += size / 2;
    const double paid = payment.Of(known_[i], 0);
    if (paid > 1 + kMargin) {
      std::rotate(known_.begin(), known_.begin() + static_cast<std::ptrdiff_t>(i),
                  known_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      return true;
    }
    if (paid <= most) continue;
    most = paid;
    best = known_[i];
  }
  if (rounds == 0) return false;
  Prices prices = best.value_or(first);
  PriceSearch search(question, &prices);
  const bool refutes = search.Refute(rounds);
  work_ += size * search.rounds();
  if (!refutes && best) return false;
  known_.insert(known_.begin(), std::move(prices));
  if (known_.size() > kKept) known_.pop_back();
  return refutes;
}

}  // namespace contraflow
