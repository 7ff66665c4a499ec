#include "schedules/partition/pairing.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "schedules/partition/joint_bound.h"

namespace contraflow {

int64_t Pairing::Entries(int layers) const {
  const int64_t tables = nested ? 1 : std::max(0, layers - 2 * steps + 1);
  return tables * steps * (layers + 1) * (layers + 1);
}

std::optional<Pairing> PairingOf(const Plan& frame) {
  const auto count = [&](size_t route) {
    return static_cast<Time>(frame.routes[route].microbatches.size());
  };
  const int ranks = frame.ranks;
  if (frame.routes.size() == 2 && frame.stages == ranks) {
    if (count(1) == 0) return {};
    for (int s = 0; s < ranks; ++s) {
      const auto at = static_cast<size_t>(s);
      if (frame.routes[0].ranks[at] != s || frame.routes[1].ranks[at] != ranks - 1 - s) return {};
    }
    return Pairing{true, (ranks + 1) / 2, count(0), count(1), ranks % 2 == 1};
  }
  if (frame.routes.size() != 1 || frame.stages != 2 * ranks) return {};
  const std::vector<int>& of = frame.routes[0].ranks;
  bool nested = true, looped = true;
  for (int s = 0; s < ranks; ++s) {
    if (of[static_cast<size_t>(s)] != s) return {};
    nested = nested && of[static_cast<size_t>(2 * ranks - 1 - s)] == s;
    looped = looped && of[static_cast<size_t>(ranks + s)] == s;
  }
  if (!nested && !looped) return {};
  return Pairing{nested, ranks, count(0), 0, false};
}

PairedRanks::PairedRanks(const Spec& spec, LayerStages* layers, const LayerWork& work,
                         const Pairing& pairing)
    : spec_(spec),
      layers_(*layers),
      work_(work),
      pairing_(pairing),
      hop_(LeastHop(spec.costs)),
      fastest_(Fastest(spec)) {}

Time PairedRanks::Chain(int first, int last) const {
  return layers_.forward_before(last) - layers_.forward_before(first) +
         layers_.backward_before(last) - layers_.backward_before(first);
}

Time PairedRanks::Head(int layer, int hops) const {
  return AtLeast(layers_.forward_before(layer), fastest_, hops) + hops * hop_;
}

Time PairedRanks::Tail(int layer, int hops) const {
  return AtLeast(layers_.backward_before(layer), fastest_, hops) + hops * hop_;
}

Time PairedRanks::BackAt(int layer, int hops) const {
  const int all = AllHops();
  return Head(layers(), all) + Tail(layers(), all) - Tail(layer, hops);
}

Time PairedRanks::OfAll(int k, Time a, Time b) const {
  const auto [one, two] = std::pair(pairing_.first, pairing_.second);
  const Time all = two == 0 ? one * (a + b) : std::max(one * a + two * b, one * b + two * a);
  return AtLeast(all, SpeedOf(spec_, k), 6 * (one + two));
}

/// From the first stage of a route to the last. A V turns within its last rank.
int PairedRanks::AllHops() const {
  if (pairing_.second > 0) return spec_.ranks - 1;
  return 2 * spec_.ranks - (pairing_.nested ? 2 : 1);
}

/// Stage s of a route with the layers first..last-1, and what passes around it.
RankStage PairedRanks::Around(int s, int first, int last, Time microbatches) {
  const bool v = pairing_.nested && pairing_.second == 0;
  const int hops = v && s >= spec_.ranks ? s - 1 : s;
  RankStage stage = {layers_.CostOf(first, last), static_cast<int>(microbatches), {}};
  stage.around.head = layers_.forward_before(first) + hops * hop_;
  stage.around.tail = layers_.backward_before(first) + hops * hop_;
  stage.around.lag = Chain(last, layers()) + 2 * (AllHops() - hops) * hop_;
  return stage;
}

Time PairedRanks::Prove(int k, int i, int to, int begin, int end, bool alone) {
  const Time one = pairing_.first, two = pairing_.second;
  if (alone) {
    return ProveRankBound(std::array{Around(k, i, to, one), Around(k, i, to, two)});
  }
  if (two == 0) {
    const int second = pairing_.nested ? 2 * spec_.ranks - 1 - k : spec_.ranks + k;
    return ProveRankBound(std::array{Around(k, i, to, one), Around(second, begin, end, one)});
  }
  const int second = spec_.ranks - 1 - k;
  const Time value =
      ProveRankBound(std::array{Around(k, i, to, one), Around(second, begin, end, two)});
  if (one == two) return value;
  return std::max(
      value, ProveRankBound(std::array{Around(k, i, to, two), Around(second, begin, end, one)}));
}

void PairedRanks::FindRoom(Time most) {
  const auto width = static_cast<size_t>(layers()) + 1;
  room_.assign(static_cast<size_t>(pairing_.steps) * width, 0);
  const Time both = pairing_.first + pairing_.second;
  for (int k = pairing_.steps - 2; k >= 0; --k) {
    const int next = k + 1;
    const bool two = pairing_.second > 0 && !(pairing_.middle && next + 1 == pairing_.steps);
    for (int to = 0; to <= layers(); ++to) {
      const Time time = std::max<Time>(0, most - 1 - Head(to, next));
      const size_t at = static_cast<size_t>(k) * width + static_cast<size_t>(to);
      room_[at] = (two ? 2 * time : time) / both;
      if (to < layers()) room_[at] += room_[at + width + 1];
    }
  }
}

bool PairedRanks::Leaves(int k, int to, int inner, int outer) const {
  if (!spec_.costs.ranks.empty()) return false;
  const Time left =
      work_.between(to, inner) + (pairing_.nested ? 0 : work_.between(outer, layers()));
  return left > room_[static_cast<size_t>(k) * static_cast<size_t>(layers() + 1) +
                      static_cast<size_t>(to)];
}

}  // namespace contraflow
