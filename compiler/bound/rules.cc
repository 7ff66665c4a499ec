// What a memory limit says about the order of micro-batches (bound_order.cc numbers forwards,
// backwards and rests of a stage in the order in which its rank runs them). Let n = limit /
// activation and s0, s1, .. be the stages of one route on the rank, in order.
//
//  * When the k-th forward of s_j starts, k micro-batches have had their forwards of s_0 .. s_j and
//    at most k - 1 their backward of any of these, for that comes after their forward of s_j. If
//    beta_i backwards of s_i have ended, sum over i <= j of (k - beta_i) activations are held, each
//    k - beta_i >= 1: no more than n together, so k - beta_i <= n - j, and
//    B of s_i, k - (n - j) ends before F of s_j, k starts. The latest of these is i = 0.
//  * Between the end of its B and of its W a chunk holds a stash. So with omega_i rests ended
//    sum of stash (k - omega_i) + (activation - stash) (k - beta_i) <= limit, and with
//    k - beta_i >= 1: k - omega_i <= (limit - (j + 1) (activation - stash)) / stash - j.
//  * Together. The first of these, read as a sum: over i <= j at least (j + 1) k - n backwards have
//    ended, and at most k - 1 of each s_i. Of these (j + 1) (k - 1) all but n - j - 1 come before
//    F of s_j, k: it starts no earlier than the (n - j)-th latest of them ends. Likewise rests. And
//    read from the end of B of s_j: the (n - j)-th earliest of the forwards of s_0 .. s_j with
//    numbers above k starts after it.
//  * No deadlock. Let p micro-batches have started their forward of s_j and not that of s_(j+1).
//    All p hold j + 1 activations until they have been to s_(j+1) and back, and the next forward of
//    s_(j+1) takes one more: p (j + 1) + 1 <= n. So
//    F of s_(j+1), k - (n - 1) / (j + 1) ends before F of s_j, k starts.
//
// All of this holds for any part of the rank's stages, so those that are recomputed, and hold less,
// are left out.

#include "compiler/bound/rules.h"

#include <algorithm>
#include <map>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

class Maker {
 public:
  Maker(const BoundInput& input, const RouteWork& route) : input_(input), route_(route) {}

  MemoryRules Make() {
    rules_.before.resize(route_.stages());
    rules_.together.resize(route_.stages());
    if (!input_.memory) return rules_;
    std::map<int, std::vector<size_t>> stages;  // by rank
    for (size_t s = 0; s < route_.stages(); ++s) {
      if (!route_.recomputed[s]) stages[route_.ranks[s]].push_back(s);
    }
    for (const auto& [rank, list] : stages) {
      for (size_t j = 0; j < list.size(); ++j) AddPrecedencesOf(list, j);
    }
    return rules_;
  }

 private:
  void AddPrecedencesOf(const std::vector<size_t>& stages, size_t j) {
    const BoundMemory& memory = *input_.memory;
    const auto nested = static_cast<int64_t>(j);
    const auto least = [this](size_t s) { return route_.least[s]; };
    Add(Pass::kBackward, stages[0], stages[j], memory.slots() - nested, least(stages[0]).b);
    if (memory.stash > 0) {
      const int64_t kept = (nested + 1) * (memory.activation - memory.stash);
      const int64_t shift = (memory.limit - kept) / memory.stash - nested;
      Add(Pass::kRest, stages[0], stages[j], shift, input_.RestOfPosition(route_, stages[0]));
      if (j > 0)
        Add(Pass::kRest, stages[j], stages[j], shift, input_.RestOfPosition(route_, stages[j]));
    }
    if (j > 0) AddTogether({stages.begin(), stages.begin() + static_cast<ptrdiff_t>(j) + 1});
    if (j + 1 < stages.size()) {
      const int64_t shift = (memory.slots() - 1) / (nested + 1);
      Add(Pass::kForward, stages[j + 1], stages[j], shift, least(stages[j + 1]).f);
    }
  }

  void Add(Pass from, size_t from_stage, size_t to_stage, int64_t shift, Time delay) {
    CF_ASSERT(shift >= 1);
    if (static_cast<size_t>(shift) >= route_.count) return;
    rules_.before[to_stage].push_back(
        {from, from_stage, to_stage, static_cast<size_t>(shift), delay});
    rules_.precedences.push_back(rules_.before[to_stage].back());
  }

  void AddTogether(const std::vector<size_t>& stages) {
    const BoundMemory& memory = *input_.memory;
    const auto all = static_cast<int64_t>(stages.size());
    Together together = {stages, static_cast<size_t>(memory.slots() - all), SIZE_MAX};
    if (memory.stash > 0) {
      const int64_t kept = all * (memory.activation - memory.stash);
      together.rests = static_cast<size_t>((memory.limit - kept) / memory.stash - all);
    }
    rules_.together[stages.back()] = together;
  }

  const BoundInput& input_;
  const RouteWork& route_;
  MemoryRules rules_;
};

}  // namespace

MemoryRules RulesOf(const BoundInput& input, const RouteWork& route) {
  return Maker(input, route).Make();
}

}  // namespace contraflow
