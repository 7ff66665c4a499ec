// The bound against the optimum of random tiny instances. CONTRAFLOW_EXACT=5000 takes as many of
// them and prints what came out by class.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>

#include "compiler/bound.h"
#include "schedules/placement.h"
#include "tests/exact_search.h"
#include "tests/support.h"

namespace contraflow {
namespace {

struct Instance {
  Plan plan;
  CostModel costs;
  std::optional<int64_t> limit;
  std::string placement, memory, kind;

  std::string Class() const { return placement + ", " + memory + ", " + kind; }
};

std::string Describe(const Instance& instance) {
  std::string text = instance.Class() + " P=" + std::to_string(instance.plan.ranks) +
                     " M=" + std::to_string(instance.plan.microbatches);
  if (instance.limit) text += " limit=" + std::to_string(*instance.limit);
  const CommCost& comm = instance.costs.comm;
  text +=
      " latency=" + std::to_string(comm.latency) + " occupancy=" + std::to_string(comm.occupancy);
  if (instance.costs.memory) {
    text += " bytes=" + std::to_string(instance.costs.memory->activation_bytes) + "/" +
            std::to_string(instance.costs.memory->w_stash_bytes);
  }
  for (const StageCost& s : instance.costs.stages) {
    text += " (" + std::to_string(s.f) + " " + std::to_string(s.b) + " " + std::to_string(s.w) +
            " " + std::to_string(s.bw) + " " + std::to_string(s.fb) + ")";
  }
  for (const double scale : instance.costs.microbatch_scale) text += " x" + std::to_string(scale);
  return text;
}

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  int Of(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<uint64_t>(high - low + 1));
  }

  Instance Next() {
    Instance instance;
    const int placement = Of(0, 3);
    const int ranks = Of(2, placement == 0 ? 4 : placement == 1 ? 3 : placement == 2 ? 4 : 2);
    const int chunks = placement * ranks >= 6 || placement == 2 ? 4 : 5;
    Spec spec = MakeSpec("drawn", ranks, Of(2, chunks), {});
    if (placement == 0) instance.plan = SingleRoutePlan(spec, LinearPlacement(ranks));
    if (placement == 1) instance.plan = SingleRoutePlan(spec, VPlacement(ranks));
    if (placement == 2) instance.plan = BidirectionalPlan(spec);
    if (placement == 3) {
      std::vector<int> twice = LinearPlacement(ranks);
      for (int r = 0; r < ranks; ++r) twice.push_back(r);
      instance.plan = SingleRoutePlan(spec, twice);
    }
    instance.plan.stages = static_cast<int>(instance.plan.routes[0].ranks.size());
    instance.placement =
        std::array{"linear", "V", "bidirectional", "interleaved"}[static_cast<size_t>(placement)];
    DrawCosts(&instance);
    DrawMemory(&instance);
    return instance;
  }

 private:
  StageCost DrawStage(bool together, bool pairs) {
    StageCost cost;
    const bool unit = Of(0, 2) == 0;
    cost.f = unit ? 10 : Of(4, 16);
    cost.b = unit ? 10 : Of(4, 16);
    cost.w = unit ? 10 : Of(0, 12);
    const Time longer = std::max(cost.b, cost.w);
    cost.bw =
        together ? longer + Of(0, static_cast<int>(cost.b + cost.w - longer)) : cost.b + cost.w;
    cost.fb = cost.f + cost.bw;
    const Time least = std::max({cost.f, cost.b, cost.w});
    if (pairs) cost.fb = least + Of(0, static_cast<int>(cost.fb - least));
    return cost;
  }

  void DrawCosts(Instance* instance) {
    CostModel& costs = instance->costs;
    const int kind = Of(0, 7);
    const bool uneven = kind >= 3, together = kind == 5, pairs = kind == 6;
    instance->kind = pairs       ? "pairs"
                     : kind == 7 ? "micro-batches"
                     : together  ? "full backwards"
                     : uneven    ? "uneven"
                                 : "even";
    const int stages = uneven && !pairs ? instance->plan.stages : 1;
    for (int s = 0; s < stages; ++s) costs.stages.push_back(DrawStage(together, pairs));
    if (kind == 7) {
      for (int m = 0; m < instance->plan.microbatches; ++m) {
        costs.microbatch_scale.push_back(Of(5, 20) / 10.0);
      }
    }
    if (Of(0, 1) == 0) costs.comm.latency = Of(1, 6);
    if (Of(0, 4) == 0) {
      costs.comm.bytes = 1;
      costs.comm.bandwidth = 1;
      costs.comm.occupancy = Of(1, 12);
    }
  }

  void DrawMemory(Instance* instance) {
    const int visits = instance->plan.stages / instance->plan.ranks;
    const bool both = instance->plan.routes.size() > 1;
    const int whole = instance->plan.ranks * visits + (both ? 1 : 0);
    instance->memory = "any memory";
    int activation = 1;
    if (Of(0, 2) == 0) {
      activation = Of(3, 10);
      instance->costs.memory = MemoryCost{};
      instance->costs.memory->activation_bytes = activation;
      instance->costs.memory->w_stash_bytes = Of(0, activation);
    }
    const int kind = Of(0, 4);
    if (kind == 0) return;
    const int least = std::max(visits, both ? 2 : 1);
    const int slots = kind < 3 ? Of(least, std::max(least, whole - 1)) : Of(whole, whole * 3 / 2);
    instance->memory = slots < whole ? "below 1x" : "from 1x on";
    instance->limit = slots * activation + Of(0, activation - 1);
  }

  std::mt19937_64 random_;
};

struct Tally {
  int cases = 0, reached = 0;
  double gap = 0, worst = 0;

  void Add(Time bound, Time optimum) {
    ++cases;
    reached += bound == optimum;
    const double by = static_cast<double>(optimum - bound) / static_cast<double>(optimum);
    gap += by;
    worst = std::max(worst, by);
  }
};

void Print(const std::map<std::string, Tally>& tallies) {
  for (const auto& [name, tally] : tallies) {
    std::printf("%-48s %5d cases, reached %5.1f %%, gap %6.3f %%, worst %5.1f %%\n", name.c_str(),
                tally.cases, 100.0 * tally.reached / tally.cases, 100 * tally.gap / tally.cases,
                100 * tally.worst);
  }
}

int WantedCases() {
  const char* const wanted = std::getenv("CONTRAFLOW_EXACT");
  return wanted == nullptr ? 300 : std::atoi(wanted);
}

TEST_SUITE("unit") {
  TEST_CASE("no bound is above the optimum of a tiny instance") {
    const char* const seed = std::getenv("CONTRAFLOW_SEED");
    Draw draw(seed == nullptr ? 6 : static_cast<uint64_t>(std::atoll(seed)));
    std::map<std::string, Tally> classes;
    std::map<std::string, int> kinds;
    Tally all;
    int unfinished = 0, impossible = 0;
    const int wanted = WantedCases();
    while (all.cases < wanted) {
      const Instance instance = draw.Next();
      const ExactResult exact = ExactMakespan(instance.plan, instance.costs, instance.limit,
                                              wanted > 1000 ? 40000 : 4000);
      if (!exact.finished) {
        ++unfinished;
        continue;
      }
      if (!exact.makespan) {
        ++impossible;
        continue;
      }
      const Bound bound = ProveBound(instance.plan, instance.costs, instance.limit);
      CAPTURE(Describe(instance));
      CAPTURE(Name(bound.kind));
      CHECK(bound.value <= *exact.makespan);
      CHECK(bound.value == bound.head + bound.work + bound.idle + bound.tail);
      all.Add(bound.value, *exact.makespan);
      classes[instance.Class()].Add(bound.value, *exact.makespan);
      classes[instance.placement + ", " + instance.memory].Add(bound.value, *exact.makespan);
      ++kinds[std::string(Name(bound.kind))];
      if (std::getenv("CONTRAFLOW_GAPS") != nullptr && bound.value < *exact.makespan) {
        std::printf("%5.1f%% bound %ld optimum %ld by %s rank %d: %s\n",
                    100.0 * static_cast<double>(*exact.makespan - bound.value) /
                        static_cast<double>(*exact.makespan),
                    bound.value, *exact.makespan, std::string(Name(bound.kind)).c_str(), bound.rank,
                    Describe(instance).c_str());
      }
    }
    if (std::getenv("CONTRAFLOW_EXACT") != nullptr) {
      Print(classes);
      for (const auto& [name, count] : kinds) std::printf("%s: %d\n", name.c_str(), count);
    }
    MESSAGE("the bound is the optimum of " << all.reached << " of " << all.cases << " and "
                                           << 100 * all.gap / all.cases << " % below on average; "
                                           << unfinished << " unfinished, " << impossible
                                           << " impossible");
    // A bound that is never near could be far too low without anybody noticing.
    CHECK(all.reached > all.cases / 2);
  }
}

}  // namespace
}  // namespace contraflow
