// Spec::device_memory: what a rank holds in all, what fits, and what `auto` makes of it.

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/simulate/memory.h"
#include "schedules/compare.h"
#include "schedules/compile.h"
#include "schedules/published/rows.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::device_memory_test {
namespace {

CostModel RandomBytes(std::mt19937_64* random, int stages) {
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(*random);
  };
  CostModel costs = UniformCosts(2, 2, 2);
  costs.stages.resize(static_cast<size_t>(stages), costs.stages.front());
  MemoryCost memory = {.activation_bytes = draw(1, 20)};
  memory.w_stash_bytes = draw(0, static_cast<int>(memory.activation_bytes));
  memory.workspace_bytes = draw(0, 5);
  memory.zero = draw(0, 3);
  for (int s = 0; s < stages; ++s) {
    memory.parameter_bytes.push_back(draw(0, 30));
    memory.gradient_bytes.push_back(draw(0, 60));
    memory.optimizer_bytes.push_back(draw(0, 90));
  }
  if (draw(0, 1) == 1) {
    for (const StateBytes& state : kStateBytes) {
      for (const int64_t all : memory.*state.of_stages) {
        (memory.*state.rest_of_stages).push_back(draw(0, static_cast<int>(all)));
      }
    }
  }
  if (draw(0, 1) == 1) {
    costs.parallel = {.tp = 1 << draw(0, 2),
                      .cp = 1 << draw(0, 1),
                      .ep = 1 << draw(0, 3),
                      .etp = 1 << draw(0, 1)};
  }
  costs.comm.bytes = draw(0, 4);
  costs.memory = memory;
  return costs;
}

/// The fullest rank, counted from the plan alone.
int64_t MostHeld(const Plan& plan, const CostModel& costs) {
  const MemoryCost& memory = *costs.memory;
  int64_t most = 0;
  for (int r = 0; r < plan.ranks; ++r) {
    int64_t parameters = 0, gradients = 0, optimizer = 0, held = 0, peak = 0, edges = 0;
    int64_t rest_parameters = 0, rest_gradients = 0, rest_optimizer = 0;
    std::vector<int> stages;
    for (int s = 0; s < plan.stages; ++s) {
      const auto at = static_cast<size_t>(s);
      bool here = false;
      for (const Route& route : plan.routes) here = here || route.ranks[at] == r;
      if (!here) continue;
      stages.push_back(s);
      parameters += memory.parameter_bytes[at];
      gradients += memory.gradient_bytes[at];
      optimizer += memory.optimizer_bytes[at];
      if (memory.optimizer_rest.empty()) continue;
      rest_parameters += memory.parameter_rest[at];
      rest_gradients += memory.gradient_rest[at];
      rest_optimizer += memory.optimizer_rest[at];
    }
    for (int other = 0; other < plan.ranks; ++other) {
      bool neighbour = false;
      for (const Route& route : plan.routes) {
        for (size_t s = 1; s < route.ranks.size(); ++s) {
          const int a = route.ranks[s - 1], b = route.ranks[s];
          neighbour = neighbour || (a != b && std::minmax(a, b) == std::minmax(r, other));
        }
      }
      edges += neighbour ? 2 : 0;
    }
    for (const Instruction& i : plan.programs[static_cast<size_t>(r)]) {
      if (HasForward(i.op)) peak = std::max(peak, held += memory.activation_bytes);
      if (HasBackward(i.op)) held -= memory.activation_bytes - memory.w_stash_bytes;
      if (HasWeight(i.op)) held -= memory.w_stash_bytes;
    }
    const Parallel split = costs.parallel.value_or(Parallel{.ep = plan.expert_parallel});
    const int devices = std::max(split.tp * split.cp, split.ep * split.etp) * plan.data_parallel;
    const int hold_rest = devices / split.tp, hold_expert = devices / (split.ep * split.etp);
    const auto part = [&](int64_t bytes, int64_t rest, int from) {
      if (memory.zero < from) return bytes;
      const auto up = [](int64_t whole, int parts) { return (whole + parts - 1) / parts; };
      if (memory.optimizer_rest.empty()) return up(bytes, std::min(hold_rest, hold_expert));
      return up(bytes - rest, hold_expert) + up(rest, hold_rest);
    };
    // The two stages whose shared parameters are the most, whole.
    int64_t gathered = 0;
    const auto shared = [&](int s) {
      const auto at = static_cast<size_t>(s);
      const int64_t all = memory.parameter_bytes[at];
      if (memory.parameter_rest.empty()) return std::min(hold_rest, hold_expert) > 1 ? all : 0;
      const int64_t rest = memory.parameter_rest[at];
      return (hold_rest > 1 ? rest : 0) + (hold_expert > 1 ? all - rest : 0);
    };
    for (const int one : stages) {
      gathered = std::max(gathered, shared(one));
      for (const int other : stages) {
        if (one != other) gathered = std::max(gathered, shared(one) + shared(other));
      }
    }
    if (memory.zero < 3) gathered = 0;
    most =
        std::max(most, part(parameters, rest_parameters, 3) + gathered +
                           part(gradients, rest_gradients, 2) + part(optimizer, rest_optimizer, 1) +
                           peak + edges * costs.comm.bytes + memory.workspace_bytes);
  }
  return most;
}

TEST_SUITE("property") {
  TEST_CASE("a plan fits exactly the devices that hold all of its fullest rank") {
    std::mt19937_64 random(4);
    int made = 0;
    for (int round = 0; round < CasesToDraw(60); ++round) {
      const int ranks = 1 + static_cast<int>(random() % 5);
      for (const Schedule* schedule : Schedules()) {
        if (schedule == &kAuto) continue;
        Spec spec = MakeSpec(std::string(schedule->name), ranks, 2 * ranks, UniformCosts(1, 1, 1));
        spec.data_parallel = 1 + static_cast<int>(random() % 4);
        if (!schedule->reject(spec).empty()) continue;
        spec.costs = RandomBytes(&random, schedule->stages(spec));
        if (!spec.costs.parallel) spec.expert_parallel = 1 + static_cast<int>(random() % 3);
        CAPTURES(spec.schedule, round);
        const Plan plan = Compile(spec, {.level = Level::kCompute});
        const int64_t most = MostHeld(plan, spec.costs);
        int64_t said = 0;
        for (const MemoryFigures& rank : MemoryOf(plan, spec.costs)) {
          said = std::max(said, rank.total());
        }
        CHECK(said == most);
        ++made;
        spec.device_memory = most;
        // A schedule that heeds a limit may make another plan for the room there is, and that fits
        // as well.
        CHECK_NOTHROW(Compile(spec));
        if (schedule->name == "zb-2p" || most == 1) continue;
        spec.device_memory = most - 1;
        CHECK(Contains(Failure([&] { Compile(spec); }), " does not fit `device_memory`: rank "));
        CHECK_NOTHROW(Compile(spec, {.any_device = true}));
      }
    }
    CHECK((kSanitized || made > 300));
  }

  TEST_CASE("auto fits the device on every rank, or says that nothing does") {
    std::mt19937_64 random(9);
    int fitted = 0, once = 0;
    for (int round = 0; round < CasesToDraw(30); ++round) {
      Spec spec = MakeSpec("auto", 4, 8, RandomBytes(&random, 4));
      spec.search.placement = Placement::kAny;
      spec.search.budget = 2'000'000;
      spec.device_memory = 100 + static_cast<int64_t>(random() % 400);
      try {
        const Plan plan = Compile(spec);
        const std::vector<MemoryFigures> ranks = MemoryOf(plan, *plan.costs);
        for (const MemoryFigures& rank : ranks) CHECK(rank.total() <= *spec.device_memory);
        ++fitted;
        once += plan.provenance->placement != "bidirectional";
      } catch (const Error& error) {
        CHECK(Contains(std::string(error.what()), "`device_memory`"));
      }
    }
    CHECK((kSanitized || fitted > 5));
    CHECK(fitted < 30);
    CHECK((kSanitized || once > 2));
  }
}

TEST_SUITE("property") {
  TEST_CASE("auto gives each rank the room that its own state leaves") {
    std::mt19937_64 random(3);
    const auto draw = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    int unlike = 0, as_tight = 0;
    for (int round = 0; round < CasesToDraw(60); ++round) {
      const int ranks = draw(2, 3);
      Spec on_devices = MakeSpec("auto", ranks, draw(3, 5), UniformCosts(3, 2, 2));
      for (StageCost& stage : on_devices.costs.stages) stage.f = draw(1, 4);
      on_devices.device_memory = 80;
      if (draw(0, 1) == 0) on_devices.costs.host = HostCost{.latency = 1, .bandwidth = 1};
      Spec limited = on_devices;
      limited.device_memory.reset();
      // Has as many activations of each stage as there is room for.
      limited.memory_limit = 2520;
      MemoryCost memory, as_many;
      for (int s = 0; s < ranks; ++s) {
        memory.activation_of.push_back(draw(5, 20));
        memory.parameter_bytes.push_back(draw(0, 60));
        const int64_t fit = (80 - memory.parameter_bytes.back()) / memory.activation_of.back();
        as_many.activation_of.push_back(2520 / std::min<int64_t>(fit, 10));
      }
      for (MemoryCost* each : {&memory, &as_many}) {
        each->activation_bytes = std::ranges::min(each->activation_of);
        each->stash_of.assign(each->activation_of.size(), 0);
      }
      on_devices.costs.memory = memory;
      limited.costs.memory = as_many;
      CAPTURE(round);
      const Plan plan = Compile(on_devices), other = Compile(limited);
      CHECK(plan.provenance->makespan == other.provenance->makespan);
      CHECK(plan.provenance->bound <= plan.provenance->makespan);
      as_tight += plan.provenance->bound == other.provenance->bound;
      unlike += std::ranges::max(as_many.activation_of) > 2 * as_many.activation_bytes;
    }
    CHECK((kSanitized || unlike > 20));
    CHECK((kSanitized || as_tight > 50));
  }
}

TEST_SUITE("unit") {
  TEST_CASE("components overlap no further than each device has room") {
    std::mt19937_64 random(71);
    int compiled = 0;
    for (int round = 0; round < CasesToDraw(30); ++round) {
      const int ranks = 2 + static_cast<int>(random() % 3);
      Spec spec = MakeSpec(round % 2 == 0 ? "auto" : "1f1b", ranks, 2 * ranks,
                           RandomMoeCosts(&random, 2, Overlap::kAll));
      spec.costs.memory = MemoryCost{.activation_bytes = 100, .w_stash_bytes = 20};
      for (int s = 0; s < ranks; ++s) {
        spec.costs.memory->parameter_bytes.push_back(static_cast<int64_t>(random() % 200));
      }
      spec.search.placement = Placement::kLinear;
      spec.search.budget = 2'000'000;
      spec.device_memory = 100 * (ranks + 1) + static_cast<int64_t>(random() % 200);
      if (round % 3 == 0) spec.memory_limit = 200 * ranks;
      try {
        const Plan plan = Compile(spec, {.level = Level::kComponent});
        CAPTURE(round);
        for (const MemoryFigures& rank : MemoryOf(plan, *plan.costs)) {
          CHECK(rank.total() <= *spec.device_memory);
        }
        ++compiled;
      } catch (const InternalError&) {
        throw;
      } catch (const Error&) {
        // Its parameters are too many.
      }
    }
    CHECK(compiled > CasesToDraw(30) / 2);
  }

  TEST_CASE("compare shows what does not fit a device, and does not advise it") {
    CostModel costs = UniformCosts(4, 4, 4);
    costs.memory = {.activation_bytes = 10, .w_stash_bytes = 4, .parameter_bytes = {100}};
    CompareRequest request;
    request.spec = MakeSpec("", 4, 8, costs);
    request.spec.device_memory = 160;
    request.no_auto = true;
    int fit = 0, not_fit = 0;
    for (const CompareRow& row : Compare(request)) {
      if (!row.report) continue;
      CAPTURE(row.schedule);
      CHECK(row.fits == (*row.total <= 160));
      // Two copies of the parameters are more than the device has.
      if (row.twice) CHECK_FALSE(row.fits);
      (row.fits ? fit : not_fit)++;
    }
    CHECK(fit > 3);
    CHECK(not_fit > 2);
    const std::vector<CompareRow> rows = Compare(request);
    for (const CompareRow& row : rows) {
      if (row.schedule == Advise(rows).schedule) CHECK(row.fits);
    }
    request.spec.device_memory = 20;
    CHECK(Advise(Compare(request)).schedule == "");
    const auto ends = [&](const std::string& words) {
      return Advise(Compare(request)).text.ends_with(words);
    };
    CHECK(ends("use more `ranks`, `zero` with `data_parallel`, or `recompute` auto"));
    request.spec.costs.memory->input_bytes = 1;
    request.spec.recompute = {.choice = Recompute::Choice::kAuto};
    CHECK(ends("use more `ranks`, or `zero` with `data_parallel`"));
  }

  TEST_CASE("sizes in words") {
    CHECK(ParseBytes("80GB", "x") == 80'000'000'000);
    CHECK(ParseBytes("1.5KiB", "x") == 1536);
    CHECK(ParseBytes("80e9", "x") == 80'000'000'000);
    CHECK(ParseBytes("7", "x") == 7);
    CHECK(ParseBytes("2TiB", "x") == int64_t{1} << 41);
    for (const char* text : {"", "GB", "80gb", "80 GB", "80GBs", "x", "nan", "inf", "0x10"}) {
      CHECK(Failure([&] { ParseBytes(text, "`device_memory`"); }) ==
            "`device_memory`: must be a number of bytes such as 80GB or 74.5GiB, is \"" +
                std::string(text) + "\"");
    }
    for (const char* text : {"0", "-1", "-5GB", "0.4"}) {
      CHECK(Failure([&] { ParseBytes(text, "f"); }) ==
            "f: must be positive, is \"" + std::string(text) + "\"");
    }
    for (const char* text : {"1e300", "99999999999999999999", "5e9TB"}) {
      CHECK(Failure([&] { ParseBytes(text, "f"); }).find("f: must be at most ") == 0);
    }
    // Without bytes in the costs a limit counts activations.
    const Spec spec = MakeSpec("1f1b", 4, 8, UniformCosts(1, 1, 1));
    CHECK(MemoryLimitOf(spec, "5") == 5);
    CHECK(Contains(Failure([&] { MemoryLimitOf(spec, "80GB"); }), "counts activations"));
    CHECK(Contains(Failure([&] { MemoryLimitOf(spec, "80000000000"); }),
                   "and there are 32; for bytes"));
  }
}

}  // namespace
}  // namespace contraflow::device_memory_test
