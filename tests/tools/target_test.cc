#include "schedules/target.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "schedules/compare.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"
#include "tools/interop/interop.h"

namespace contraflow::target_test {
namespace {

Spec Shape(std::string_view schedule, int ranks, int microbatches, Target target) {
  Spec spec = MakeSpec(schedule, ranks, microbatches, UniformCosts(3'000, 4'000, 2'000, 100));
  spec.target = target;
  spec.search = {.placement = Placement::kAny, .budget = 2'000'000};
  return spec;
}

std::string WhyNot(const Spec& spec) {
  return Failure([&] { Compile(spec); });
}

/// Returns nothing where the schedule itself does not take the shape.
std::optional<Plan> CompileIfTaken(const Spec& spec) {
  try {
    return Compile(spec);
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool Exports(const Plan& plan, Target target) {
  try {
    if (target == Target::kTorch) WriteTorchCsv(plan, {.messages = true});
    if (target == Target::kMegatron) WriteMegatronLayout(plan, {});
    if (target == Target::kDualPipe) {
      return plan.schedule == "dualpipe" || plan.schedule == "dualpipe-v";
    }
  } catch (const Error&) {
    return false;
  }
  return true;
}

TEST_SUITE("unit") {
  TEST_CASE("target: names") {
    for (const Target target : {Target::kTorch, Target::kMegatron, Target::kDualPipe}) {
      CHECK(ParseTarget(Name(target)) == target);
    }
    CHECK_THROWS_WITH_AS(ParseTarget("megatrn"),
                         "`for`: unknown system \"megatrn\" (did you mean \"megatron\"?); they are "
                         "torch, megatron and dualpipe",
                         Error);
    CHECK_THROWS_AS(ParseTarget("any"), Error);
  }

  TEST_CASE("target: what is taken can be exported, and what cannot is refused") {
    int plans = 0;
    for (const Target target : {Target::kTorch, Target::kMegatron, Target::kDualPipe}) {
      for (const Schedule* schedule : Schedules()) {
        for (const int ranks : {1, 2, 3, 4}) {
          for (const int microbatches : {1, 3, 8}) {
            Spec spec = Shape(schedule->name, ranks, microbatches, target);
            CAPTURES(schedule->name, ranks, microbatches, Name(target));
            const bool taken = RejectTarget(spec).empty();
            if (taken) {
              const std::optional<Plan> plan = CompileIfTaken(spec);
              if (plan) CHECK(Exports(*plan, target));
              plans += plan ? 1 : 0;
            } else {
              spec.target = Target::kAny;
              // All orders of one micro-batch are that of 1F1B.
              if (microbatches > 1 && schedule->reject(spec).empty())
                CHECK_FALSE(Exports(Compile(spec), target));
            }
          }
        }
      }
    }
    CHECK(plans > 150);
  }

  TEST_CASE("target: PyTorch takes the losses of the last stage in their order alone") {
    int mixed = 0;
    for (const Placement placement : {Placement::kLinear, Placement::kV, Placement::kInterleaved}) {
      for (const int ranks : {2, 3}) {
        CAPTURES(Name(placement), ranks);
        Spec spec = Shape("auto", ranks, 3, Target::kAny);
        spec.costs.microbatch_scale = {2, 0.5, 3};
        spec.search.placement = placement;
        const Plan any = Compile(spec);
        CHECK(Exports(any, Target::kTorch) == !LossOutOfTurn(any).has_value());
        mixed += LossOutOfTurn(any) ? 1 : 0;
        spec.target = Target::kTorch;
        const Plan plan = Compile(spec);
        CHECK_FALSE(LossOutOfTurn(plan).has_value());
        CHECK(Exports(plan, Target::kTorch));
      }
    }
    CHECK(mixed > 0);
  }

  TEST_CASE("target: auto is the best that it runs") {
    const auto step = [](const Spec& spec) {
      const Plan plan = Compile(spec);
      return Simulate(plan, *plan.costs).makespan;
    };
    for (const int ranks : {2, 4}) {
      const Time best = step(Shape("auto", ranks, 8, Target::kMegatron));
      for (const char* name : {"1f1b", "interleaved-1f1b"}) {
        Spec spec = Shape(name, ranks, 8, Target::kMegatron);
        spec.partition.emplace();  // of the same model
        CHECK(best <= step(spec));
      }
      CHECK(best < step(Shape("1f1b", ranks, 8, Target::kMegatron)));
    }
    // One rank more, and only the V is left.
    CHECK(Compile(Shape("auto", 4, 8, Target::kDualPipe)).schedule == "dualpipe");
    CHECK(Compile(Shape("auto", 3, 8, Target::kDualPipe)).schedule == "dualpipe-v");
    Spec spec = Shape("auto", 4, 8, Target::kDualPipe);
    spec.search.placement = Placement::kSingle;
    CHECK(Compile(spec).schedule == "dualpipe-v");
    spec = Shape("auto", 4, 8, Target::kMegatron);
    spec.search.placement = Placement::kLinear;
    CHECK(Compile(spec).schedule == "1f1b");
    // The search for torch is the one of all placements with one route.
    spec = Shape("auto", 4, 8, Target::kTorch);
    const Plan plan = Compile(spec);
    CHECK(plan.routes.size() == 1);
    spec.target = Target::kAny;
    spec.search.placement = Placement::kSingle;
    CHECK(Compile(spec).programs == plan.programs);
  }

  TEST_CASE("target: Megatron-LM overlaps pairs of models with experts on several devices") {
    Spec spec = Shape("auto", 4, 16, Target::kMegatron);
    spec.costs.stages.front().fb = 6'000;  // half of the work hides
    CHECK(Compile(spec).schedule == "interleaved-1f1b");
    spec.expert_parallel = 8;
    const Plan plan = Compile(spec);
    CHECK(plan.schedule == "combined-1f1b");
    CHECK(Exports(plan, Target::kMegatron));
    spec.recompute = ParseRecompute("full");
    CHECK(Compile(spec).schedule == "interleaved-1f1b");
    spec.recompute = ParseRecompute("auto");
    CHECK(Compile(spec).programs == plan.programs);
    spec = Shape("combined-1f1b", 4, 16, Target::kMegatron);
    CHECK(WhyNot(spec) ==
          "combined-1f1b overlaps pairs, which `for` megatron does only with experts on several "
          "devices; give `expert_parallel`");
    spec.expert_parallel = 8;
    CHECK(WhyNot(spec) == "accepted");
    spec.recompute = ParseRecompute("full");
    CHECK(WhyNot(spec) ==
          "combined-1f1b overlaps pairs, which `for` megatron does only where no forward runs "
          "again; leave `recompute` out");
  }

  TEST_CASE("target: recompute that fits the memory is of all stages or none") {
    Spec spec = Shape("auto", 4, 8, Target::kMegatron);
    spec.costs.memory = MemoryCost{.activation_bytes = 1000, .input_bytes = 100};
    spec.recompute = ParseRecompute("auto");
    spec.search.placement = Placement::kLinear;
    spec.memory_limit = 4000;
    CHECK_FALSE(RecomputedCells(Compile(spec)).any());
    spec.memory_limit = 2000;
    const Plan plan = Compile(spec);
    const RecomputedCells cells(plan);
    for (int s = 0; s < plan.stages; ++s) CHECK(cells.HasStage(s));
    spec.memory_limit = 900;
    CHECK(Contains(WhyNot(spec), "`memory_limit`"));
  }

  TEST_CASE("target: where nothing that it runs is possible, each says why") {
    CHECK(WhyNot(Shape("auto", 3, 8, Target::kDualPipe)) == "accepted");
    const std::string why = WhyNot(Shape("auto", 3, 2, Target::kDualPipe));
    CHECK(Contains(why, "dualpipe needs an even number of ranks"));
    CHECK(Contains(why, "; dualpipe-v "));
    Spec spec = Shape("auto", 4, 8, Target::kDualPipe);
    spec.search.placement = Placement::kBidirectional;
    spec.memory_limit = 4;
    CHECK(Contains(WhyNot(spec), "take auto without `for`, which fits"));
  }

  TEST_CASE("target: conflicts") {
    Spec spec = Shape("auto", 4, 8, Target::kTorch);
    spec.search.placement = Placement::kBidirectional;
    CHECK(WhyNot(spec) ==
          "auto has two routes with `placement` bidirectional, and `for` torch runs plans of one "
          "only");
    spec.target = Target::kMegatron;
    CHECK(WhyNot(spec) ==
          "auto has nothing with `placement` bidirectional that `for` megatron runs: it has 1f1b, "
          "interleaved-1f1b and combined-1f1b, of `placement` linear and interleaved");
    CHECK(WhyNot(Shape("dualpipe", 4, 8, Target::kTorch)) ==
          "dualpipe has two routes, and `for` torch runs plans of one only");
    CHECK(WhyNot(Shape("zb-v", 4, 8, Target::kDualPipe)) ==
          "zb-v is not what `for` dualpipe runs: it has dualpipe and dualpipe-v");
    CHECK(WhyNot(Shape("interleaved-1f1b", 1, 8, Target::kMegatron)) ==
          "interleaved-1f1b has chunks on one rank, which `for` megatron does not take");
    CHECK(WhyNot(Shape("interleaved-1f1b", 4, 3, Target::kMegatron)) ==
          "interleaved-1f1b has rounds of 3 micro-batches, and `for` megatron takes them of at "
          "least P, 4, only; give more `microbatches`");
    spec = Shape("1f1b", 4, 8, Target::kMegatron);
    spec.recompute = ParseRecompute("0,1");
    CHECK(WhyNot(spec) ==
          "1f1b cannot have a list for `recompute` with `for` megatron, which recomputes all "
          "stages or none; give full, none or auto");
    spec = Shape("dualpipe", 4, 8, Target::kDualPipe);
    spec.recompute = ParseRecompute("full");
    CHECK(WhyNot(spec) ==
          "dualpipe cannot have `recompute` with `for` dualpipe, which leaves it to the modules");
    spec.recompute = {};
    spec.offload = ParseOffload("full");
    CHECK(WhyNot(spec) ==
          "dualpipe cannot have `offload` with `for` dualpipe, which does not do it by plan");
  }

  TEST_CASE("target: rows of a comparison say why not") {
    CompareRequest request;
    request.spec = Shape("", 4, 8, Target::kMegatron);
    int fit = 0;
    for (const CompareRow& row : Compare(request)) {
      const bool runs =
          row.schedule == "1f1b" || row.schedule == "interleaved-1f1b" || row.schedule == "auto";
      CHECK(row.report.has_value() == runs);
      if (row.schedule == "combined-1f1b") {
        CHECK(Contains(row.rejected, "only with experts on several devices"));
      } else if (!runs) {
        CHECK(row.rejected ==
              "is not what `for` megatron runs: it has 1f1b, interleaved-1f1b and combined-1f1b");
      }
      fit += runs ? 1 : 0;
    }
    CHECK(fit == 3);
  }
}

}  // namespace
}  // namespace contraflow::target_test
