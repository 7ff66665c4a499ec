#include "tools/planner/calibration.h"

#include <doctest/doctest.h>

#include <string>

#include "tests/support/failure.h"
#include "tests/support/support.h"
#include "tests/tools/planner/planner_support.h"
#include "tools/planner/planner.h"

namespace contraflow::planner_test {

TEST_SUITE_BEGIN("unit");

TEST_CASE("calibration: with the factor its own step comes out, and others move with it") {
  for (const PlanRequest& small : {SmallMoe(8), SmallDense(8)}) {
    for (const char* schedule : {"1f1b", "zb-1p"}) {
      CAPTURE(schedule);
      PlanRequest request = small;
      request.schedules = {schedule};
      request.fixed = ParseFixed("pp=4,tp=1,ep=1,micro-batch=1");
      const PlannerRow before = FindPlans(request).rows.at(0);
      for (const double share : {0.5, 0.8, 1.2}) {
        CAPTURE(share);
        const double rate = before.tokens_per_second_per_gpu * share;
        const std::string text = "tokens/s/gpu=" + std::to_string(rate) +
                                 ",pp=4,schedule=" + schedule + ",recompute=" + before.recompute;
        double predicted = 0;
        request.scale = ScaleOf(ParseCalibrationRun(text, request), &predicted);
        CHECK(predicted == doctest::Approx(static_cast<double>(before.step) / 1e9));
        CHECK((request.scale > 1) == (share > 1));
        const PlannerRow after = FindPlans(request).rows.at(0);
        CHECK(after.tokens_per_second_per_gpu == doctest::Approx(rate).epsilon(0.011));
        request.scale = 1;
      }
    }
  }
}

TEST_CASE("calibration: a step time is the same as its rate, and its batch may be another") {
  const PlanRequest request = SmallDense(8);
  const CalibrationRun run =
      ParseCalibrationRun("step=250ms,pp=2,tp=2,gpus=4,global-batch=32", request);
  CHECK(run.seconds == 0.25);
  CHECK(run.configuration.dp == 1);
  CHECK(run.configuration.microbatches == 32);
  const double rate = 32.0 * static_cast<double>(request.sequence) / 0.25 / 4;
  const CalibrationRun same = ParseCalibrationRun(
      "tokens/s/gpu=" + std::to_string(rate) + ",pp=2,tp=2,gpus=4,global-batch=32", request);
  CHECK(same.seconds == doctest::Approx(0.25));
  CHECK(same.configuration == run.configuration);
}

TEST_CASE("calibration: costs of a scaled request say what scaled them") {
  PlanRequest request = SmallDense(8);
  ScaleToRun("step=40ms,pp=4,gpus=16,global-batch=32", &request);
  const CostSetup setup = request.SetupOf({.pp = 4});
  const Efficiencies own = EfficienciesOf(request.gpu, false);
  for (size_t kind = 0; kind < own.size(); ++kind) {
    CHECK(setup.efficiency[kind] == doctest::Approx(own[kind] * request.scale));
  }
  CHECK(request.scale < 1);
  CHECK(Contains(setup.efficiency_note, "times those of the GPU: a run (step=40ms,pp=4"));
  // costs init knows no GPUs but those of the run.
  request.gpus = 0;
  CHECK(Failure([&] { ScaleToRun("step=2s,pp=4", &request); }) ==
        "`measured`: needs gpus=N and global-batch=N");
}

TEST_CASE("calibration: what cannot be is refused with the remedy") {
  const PlanRequest request = SmallDense(8);
  const auto why = [&](const char* text) {
    return Failure([&] {
      double predicted = 0;
      ScaleOf(ParseCalibrationRun(text, request), &predicted);
    });
  };
  CHECK(why("pp=4") == "`measured`: needs one of tokens/s/gpu=N and step=TIME");
  CHECK(why("step=1s,tokens/s/gpu=5") == "`measured`: needs one of tokens/s/gpu=N and step=TIME");
  CHECK(why("tokens/s/gpu=0").starts_with("`measured`: tokens/s/gpu must be a number above 0"));
  CHECK(why("tokens/s/gpu=nan").starts_with("`measured`: tokens/s/gpu must be a number above 0"));
  CHECK(why("").starts_with("`measured`: there is no \"\"; known are tokens/s/gpu, step, tp"));
  CHECK(why("step=1s,pp") == "`measured`: pp has no value; give pp=..");
  CHECK(why("step=1s,pp=2,pp=2") == "`measured`: has pp twice");
  CHECK(why("step=1s,pp=0") == "`measured`: pp must be a whole number of at least 1");
  CHECK(Contains(why("step=1s,schedule=x"), "`measured`: unknown schedule \"x\""));
  CHECK(Contains(why("step=1s,pp=3"),
                 "pp=3,tp=1 are 3 GPUs or more, which must divide the 8 of `gpus`"));
  CHECK(Contains(why("step=1ms,pp=4"),
                 "no efficiencies between 0.02 times the GPU's and 1 give the measured 1 ms"));
}

TEST_SUITE_END();

}  // namespace contraflow::planner_test
