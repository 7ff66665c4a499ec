// Clipping and validation: the same bits whoever trains.

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/host/reference_run.h"
#include "runtime/host/run.h"
#include "runtime/launch/threaded_run.h"
#include "runtime/model/dataset.h"
#include "schedules/registry.h"
#include "tests/support/run_support.h"
#include "tests/support/support.h"

namespace contraflow::training_test {
namespace {

Model ClippedModel(int layers, float clip) {
  Model model = SmallModel(1);
  model.layers = layers;
  model.clip = clip;
  model.warmup_steps = 1;
  return model;
}

// Result of three steps of a plan.
struct Trained {
  std::vector<double> norms, losses, validated;
  std::map<std::string, Digest> weights;
  double clipped = 0;  // the norm after the last step

  bool operator==(const Trained&) const = default;
};

Trained Train(const Plan& plan, const Model& model, const Dataset* text = nullptr) {
  const Dataset dataset = SmallDataset();
  ThreadedRun run(plan, model, dataset, 7, {});
  Trained trained;
  for (int step = 1; step <= 3; ++step) {
    const StepResult result = run.Step(step);
    trained.norms.push_back(result.gradient_norm);
    trained.losses.push_back(result.loss);
    std::map<std::string, double> squares;
    for (const Device& device : run.devices()) {
      for (const int s : StagesOf(plan, device.rank))
        run.At(device).StageAt(s).AddSquares(&squares);
    }
    trained.clipped = NormOf(squares);
    if (text != nullptr) trained.validated.push_back(Validate(*text, 2, step, run));
  }
  trained.weights = ParameterDigests(SavedState(plan, run));
  return trained;
}

Plan PlanOf(std::string_view schedule, int ranks) {
  return Compile(MakeSpec(schedule, ranks, 4, UniformCosts(1, 1, 1)));
}

}  // namespace

TEST_SUITE("equivalence") {
  TEST_CASE("clip: as without a pipeline on every kind of plan") {
    for (const Level level : {Level::kComm, Level::kComponent, Level::kBuffer}) {
      for (const char* schedule : {"1f1b", "zb-v", "dualpipe"}) {
        for (const int members : {1, 2}) {
          CAPTURES(schedule, members);
          Model model = GroupModel(members == 1 ? 0 : 0.7f);
          model.clip = 0.1f;
          model.balance_loss = 0.05f;
          model.renormalise_top_k = true;
          const Plan plan = PlanFor(model, schedule, 4, 8, members, level, 5, 3 - members);
          model.layers = level == Level::kComm ? 8 : 0;
          CHECK(TrainBesideReference(plan, model).difference == "");
        }
      }
    }
  }

  TEST_CASE("clip: the same norm and weights on any number of ranks") {
    const Model model = ClippedModel(8, 0.25f);
    const Trained one = Train(PlanOf("1f1b", 1), model);
    CHECK(one.norms.front() > 0.25);
    CHECK(one.clipped == doctest::Approx(0.25).epsilon(1e-5));
    for (const int ranks : {2, 4, 8}) {
      for (const char* schedule : {"gpipe", "1f1b", "zb-1p"}) {
        CAPTURES(ranks, schedule);
        CHECK(Train(PlanOf(schedule, ranks), model) == one);
      }
    }
    // A limit that is never reached changes no weight.
    const Trained wide = Train(PlanOf("1f1b", 2), ClippedModel(8, 6e4f));
    const Trained without = Train(PlanOf("1f1b", 2), ClippedModel(8, 0));
    CHECK(wide.weights == without.weights);
    CHECK(wide.clipped == wide.norms.back());
    CHECK(without.norms == std::vector<double>{0, 0, 0});
    CHECK(one.weights != without.weights);
  }

  TEST_CASE("clip: blocks are added in the order of their names and of a copy only one counts") {
    const std::map<std::string, double> squares = {{"b", 16}, {"a", 9}};
    CHECK(NormOf(squares) == 5);
    CHECK(NormOf({}) == 0);
    const Trained replicas = Train(Compile([] {
                                     Spec spec = MakeSpec("dualpipe", 2, 4, UniformCosts(1, 1, 1));
                                     spec.data_parallel = 2;
                                     return spec;
                                   }()),
                                   ClippedModel(2, 0.2f));
    CHECK(replicas.clipped == doctest::Approx(0.2).epsilon(1e-5));
  }
}

TEST_SUITE("unit") {
  TEST_CASE("validation: the forward of other text changes no bit of the training") {
    Dataset text = SmallDataset();
    const Dataset held = HoldOut(0.25, ClippedModel(8, 0), &text);
    CHECK(text.bytes.size() == 1500);
    CHECK(text.bytes + held.bytes == SmallDataset().bytes);
    const Model model = ClippedModel(8, 0.25f);
    Trained validated = Train(PlanOf("1f1b", 2), model, &held);
    CHECK(validated.validated.size() == 3);
    CHECK(validated.validated[0] != validated.validated[1]);
    for (const char* schedule : {"1f1b", "zb-1p"}) {
      CHECK(Train(PlanOf(schedule, 4), model, &held) == validated);
    }
    validated.validated.clear();
    CHECK(Train(PlanOf("1f1b", 2), model) == validated);
  }

  TEST_CASE("validation: is the mean loss of the model as it stands at every level") {
    const Dataset dataset = SmallDataset();
    for (const Level level : {Level::kComm, Level::kComponent, Level::kBuffer}) {
      for (const int members : {1, 2}) {
        CAPTURE(members);
        Model model = GroupModel();
        const Plan plan = PlanFor(model, "dualpipe", 2, 4, members, level, 5, 2);
        model = FitModel(model, plan.stages, plan.layers, members);
        ThreadedRun run(plan, model, dataset, 7, {.strict = true}, true);
        const double loss = Validate(dataset, 1, 1, run);
        WholeModel<float> whole(model, 1, 7);
        double sum = 0;
        for (int device = 0; device < 2 * members; ++device) {
          for (int m = 0; m < 4; ++m) {
            const MicroBatch micro = DrawMicroBatch(dataset, model, 7, 1, device, m);
            sum += static_cast<double>(whole.Forward({&micro, 1})[0]);
          }
        }
        CHECK(loss == doctest::Approx(sum / (8 * members)).epsilon(1e-6));
        // And the training is as if nothing had been.
        ThreadedRun other(plan, model, dataset, 7, {});
        CHECK(run.Step(1).losses == other.Step(1).losses);
        CHECK(ParameterDigests(SavedState(plan, run)) == ParameterDigests(SavedState(plan, other)));
      }
    }
  }
}

}  // namespace contraflow::training_test
