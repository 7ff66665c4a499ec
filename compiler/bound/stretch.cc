// Stretches. A micro-batch comes to a rank's stages s_0, s_1, .. of one route in this order, and to
// their backwards in the reverse one: call F of s_0, F of s_1, .., B of s_1, B of s_0 the passes of
// the rank. As the k-th of each pass comes after the k-th of the one before it, all of the i-th to
// the k-th of the passes from `from` to `to` come after the i-th of `from` and, but for `to`
// itself, before the k-th of `to`. The rank runs them one at a time: that takes
//
//     (k - i + 1) (durations from `from` to the one before `to`) + (k - i) duration of `to`.
//
// An R of a stage comes between its F and its B. And the k-th rest of a stage comes after the k-th
// of its backwards, so the i-th to the (k - 1)-th of the rests lie between as well.
//
// What is still to do when the i-th of a pass starts is, of each position from i on, that pass and
// all that follow it, and the rests of those that are backwards.
//
// A rank that is busy all the time pushes its k-th backward as far back as its work, wherever that
// is done; seen from another rank this is a head or a tail that grows with k. It is what keeps two
// ranks from being as fast as each of them could be: one that can give its backwards no faster
// than it has forwards in between, and one upstream that cannot wait for them.

#include "compiler/bound/stretch.h"

#include <map>

namespace contraflow {
namespace {

/// With more stages a rank, only those from one pass to the next, and from F to B of a stage: the
/// pairs of passes grow with the square of the stages.
constexpr size_t kMostForAllPairs = 2;

struct PassOfRank {
  Pass pass;
  size_t stage;
  Time duration;
};

std::map<int, std::vector<PassOfRank>> PassesOf(const RouteWork& route) {
  std::map<int, std::vector<PassOfRank>> passes;  // by rank
  for (size_t s = 0; s < route.stages(); ++s) {
    passes[route.ranks[s]].push_back({Pass::kForward, s, route.least[s].f});
  }
  for (size_t s = route.stages(); s-- > 0;) {
    passes[route.ranks[s]].push_back({Pass::kBackward, s, route.least[s].b});
  }
  return passes;
}

/// Those from the passes[a] on.
void AddFrom(const BoundInput& input, const RouteWork& route, const std::vector<PassOfRank>& passes,
             size_t a, std::vector<Stretch>* stretches) {
  const auto& [pass, stage, duration] = passes[a];
  Time once = 0;
  for (size_t b = a; b < passes.size(); ++b) {
    const PassOfRank& to = passes[b];
    const size_t own = passes.size() - 1 - b;  // where the forward of a backward's stage is
    const bool backward = to.pass == Pass::kBackward;
    if (backward && own >= a) once += route.least[to.stage].again;
    const bool all = passes.size() <= 2 * kMostForAllPairs;
    if (b > a && (all || b == a + 1 || own == a)) {
      stretches->push_back({pass, to.pass, stage, to.stage, once, once + to.duration});
    }
    once += to.duration;
    // To a rest only from its own stage.
    if (backward && (b == a || own == a)) {
      stretches->push_back(
          {pass, Pass::kRest, stage, to.stage, once, once + input.RestOfPosition(route, to.stage)});
    }
  }
}

}  // namespace

std::vector<Stretch> StretchesOf(const BoundInput& input, const RouteWork& route) {
  std::vector<Stretch> stretches;
  if (input.pairs) return stretches;
  for (const auto& [rank, passes] : PassesOf(route)) {
    for (size_t a = 0; a < passes.size(); ++a) AddFrom(input, route, passes, a, &stretches);
  }
  return stretches;
}

Remainder RemainderOf(const BoundInput& input, const RouteWork& route) {
  Remainder remainder;
  remainder.forward.assign(route.stages(), 0);
  remainder.backward.assign(route.stages(), 0);
  if (input.pairs) return remainder;
  for (const auto& [rank, passes] : PassesOf(route)) {
    Time left = 0;
    for (size_t p = passes.size(); p-- > 0;) {
      const auto& [pass, stage, duration] = passes[p];
      const bool backward = pass == Pass::kBackward;
      left += duration + (backward ? input.RestOfPosition(route, stage) : route.least[stage].again);
      (backward ? remainder.backward : remainder.forward)[stage] = left;
    }
  }
  return remainder;
}

}  // namespace contraflow
