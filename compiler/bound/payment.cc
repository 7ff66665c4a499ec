#include "compiler/bound/payment.h"

#include <algorithm>
#include <array>

namespace contraflow::pricing {
namespace {

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

}  // namespace

Payment::Payment(const Question& question)
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
  flow_.resize((visits + 1) * entries());
}

double Payment::Of(const Prices& prices, double cold) {
  cold_ = cold;
  SumUp(prices.time);
  std::ranges::fill(slopes_, 0.0);
  std::ranges::fill(use_.phi, 0.0);
  double all = 0;
  for (const Way& way : question_.ways) {
    const double least = Forward(way, prices);
    if (least >= kNoWay) return kNoWay;
    all += way.count * least;
    if (cold > 0) Backward(way);
  }
  return all;
}

const Prices& Payment::Use() {
  for (size_t to = 0, from = 0; to < use_.time.size(); to += slots_, from += width_) {
    double sum = 0;
    for (size_t k = width_; k-- > 1;) {
      sum += slopes_[from + k];
      if (k <= slots_) use_.time[to + k - 1] = sum;
    }
  }
  return use_;
}

/// Sums of prices before each slot; what is behind the last one is free.
void Payment::SumUp(const std::vector<double>& prices) {
  for (size_t from = 0, to = 0; from < prices.size(); from += slots_, to += width_) {
    double sum = 0;
    for (size_t k = 0; k < width_; ++k) {
      sums_[to + k] = sum;
      if (k < slots_) sum += prices[from + k];
    }
  }
}

double Payment::Least(double a, double b) const {
  const double low = std::min(a, b), more = std::max(a, b) - low;
  return cold_ > 0 ? low - tables().Log(more * cold_) / cold_ : low;
}

/// Of a mode for each slot in which it may start.
void Payment::CostsOf(const Visit& visit, const Mode& mode, const Prices& prices,
                      const double* weights, double* costs) const {
  const double* time = &sums_[visit.rank * width_];
  const double* phi =
      mode.pair < 0 ? nullptr : &prices.phi[static_cast<size_t>(mode.pair) * slots_];
  std::fill(costs, costs + mode.starts, 0.0);
  if (mode.timed) {
    for (const auto& span : mode.spans) {
      const bool first = &span == &mode.spans.front();
      for (size_t u = 0; u < mode.starts; ++u) {
        const double here = visit.share * (span.second.Of(time + u) - span.first.Of(time + u));
        costs[u] = first ? here : std::min(costs[u], here);
      }
    }
  }
  for (size_t u = 0; phi != nullptr && u < mode.starts; ++u) {
    costs[u] += mode.timed ? -phi[u] : phi[u];
  }
  for (size_t u = 0; mode.rest && u < mode.starts; ++u) {
    const size_t from = u + mode.end;
    costs[u] += from < slots_ ? weights[from] : kNoWay;
  }
}

double Payment::Forward(const Way& way, const Prices& prices) {
  size_t at = 0;  // of a mode among all
  for (size_t o = 0; o <= way.visits.size(); ++o) {
    double* arrive = &arrive_[o * entries()];
    double* reach = &reach_[o * entries()];
    if (o == 0) std::fill(arrive, arrive + entries(), kNoWay);
    if (o == 0) arrive[0] = 0;
    double least = kNoWay;
    for (size_t u = 0; u <= slots_; ++u) reach[u] = least = Least(least, arrive[u]);
    if (o == way.visits.size()) return reach[slots_];
    const Visit& visit = way.visits[o];
    double* next = arrive + entries();
    std::fill(next, next + entries(), kNoWay);
    double* weights = &weights_[o * entries()];
    if (visit.weight.starts > 0) WeightsOf(visit, prices, weights);
    for (const Mode& mode : visit.modes) {
      double* costs = &costs_[at];
      CostsOf(visit, mode, prices, weights, costs);
      at += entries();
      for (size_t u = 0; u < mode.starts; ++u) {
        if (reach[u] >= kNoWay || costs[u] >= kNoWay || u + mode.advance > slots_) continue;
        double& to = next[u + mode.advance];
        to = Least(to, reach[u] + costs[u]);
      }
    }
  }
  return kNoWay;
}

/// The least that the rest costs from each slot on.
void Payment::WeightsOf(const Visit& visit, const Prices& prices, double* weights) {
  rest_costs_.resize(entries());
  CostsOf(visit, visit.weight, prices, nullptr, rest_costs_.data());
  double least = kNoWay;
  for (size_t v = entries(); v-- > 0;) {
    if (v < visit.weight.starts) least = Least(least, rest_costs_[v]);
    weights[v] = least;
  }
}

void Payment::Backward(const Way& way) {
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
      const double before = u > 0 ? reach[u - 1] : kNoWay;
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
void Payment::Flow(const Visit& visit, const Mode& mode, size_t o, size_t at) {
  const double* reach = &reach_[(o - 1) * entries()];
  const double* arrive = &arrive_[o * entries()];
  const double* flow = &flow_[o * entries()];
  double* before = &flow_[(o - 1) * entries()];
  double* phi = mode.pair < 0 ? nullptr : &use_.phi[static_cast<size_t>(mode.pair) * slots_];
  for (size_t u = 0; u < mode.starts && u + mode.advance <= slots_; ++u) {
    const size_t to = u + mode.advance;
    const double cost = costs_[at + u];
    if (flow[to] <= 0 || reach[u] >= kNoWay || cost >= kNoWay) continue;
    const double part =
        flow[to] * tables().Exp(std::max(0.0, (reach[u] + cost - arrive[to]) * cold_));
    if (part <= 0) continue;
    before[u] += part;
    if (mode.timed) Use(visit, mode, u, part);
    if (phi != nullptr) phi[u] += mode.timed ? -part : part;
    if (mode.rest) rest_flow_[u + mode.end] += part;
  }
}

void Payment::FlowOfRest(const Visit& visit, const double* weights) {
  CostsOf(visit, visit.weight, use_, nullptr, rest_costs_.data());
  double waited = 0;
  for (size_t v = 0; v < visit.weight.starts; ++v) {
    const double all = rest_flow_[v] + waited;
    if (all <= 0) continue;
    const double later = v + 1 < entries() ? weights[v + 1] : kNoWay;
    waited = all * tables().Share((later - rest_costs_[v]) * cold_);
    Use(visit, visit.weight, v, all - waited);
  }
}

void Payment::Use(const Visit& visit, const Mode& mode, size_t u, double part) {
  const double* time = &sums_[visit.rank * width_ + u];
  const auto cost = [&](const auto& span) { return span.second.Of(time) - span.first.Of(time); };
  const auto& [first, last] = *std::ranges::min_element(mode.spans, {}, cost);
  double* slopes = &slopes_[visit.rank * width_ + u];
  last.Add(visit.share * part, slopes);
  first.Add(-visit.share * part, slopes);
}

}  // namespace contraflow::pricing
