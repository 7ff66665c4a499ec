#include "tools/planner/configuration.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "compiler/plan/error.h"
#include "tests/tools/planner/planner_support.h"

namespace contraflow::planner_test {

TEST_SUITE_BEGIN("unit");

TEST_CASE("planner: configurations use all GPUs, the whole batch, and divide the model") {
  for (const int gpus : {1, 6, 16, 48}) {
    for (const PlanRequest& request : {SmallMoe(gpus), SmallDense(gpus)}) {
      Rejected rejected;
      const std::vector<Configuration> all = ConfigurationsOf(request, &rejected);
      CHECK(!all.empty());
      for (const Configuration& each : all) {
        CHECK(each.tp * each.pp * each.dp == gpus);
        CHECK(each.parallel().devices() * each.pp * each.replicas() == gpus);
        CHECK(each.microbatches * each.micro_batch * each.dp == request.global_batch);
        CHECK(each.pp <= static_cast<int>(request.model.layers.size()));
        CHECK_NOTHROW(CheckSetup(request.SetupOf(each), request.model));
        CHECK(std::ranges::count(all, each) == 1);
      }
    }
  }
}

TEST_CASE("planner: --fix leaves those with its values, and no others") {
  PlanRequest request = SmallMoe(16);
  Rejected rejected;
  const std::vector<Configuration> all = ConfigurationsOf(request, &rejected);
  request.fixed = ParseFixed("tp=2,ep=4,cp=1,micro-batch=1");
  CHECK(request.fixed == ParseFixed("mb=1,tp=2,ep=4,cp=1"));
  const std::vector<Configuration> some = ConfigurationsOf(request, &rejected);
  CHECK(some.size() < all.size());
  for (const Configuration& each : all) {
    const bool wanted = each.tp == 2 && each.ep == 4 && each.micro_batch == 1;
    CHECK(std::ranges::count(some, each) == (wanted ? 1 : 0));
  }
}

TEST_CASE("planner: hostile --fix is refused in words") {
  const auto refused = [](const char* text, const char* message) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(ParseFixed(text), message, Error);
  };
  const std::string known = "; known are tp, cp, ep, etp, pp, vpp, dp, micro-batch, mb, zero";
  refused("", ("`fix`: there is no \"\"" + known).c_str());
  refused("tp=8,", ("`fix`: there is no \"\"" + known).c_str());
  refused("TP=8", ("`fix`: there is no \"TP\"" + known).c_str());
  refused("tp", "`fix`: tp must be a whole number of at least 1, as in tp=1");
  refused("tp=", "`fix`: tp must be a whole number of at least 1, as in tp=1");
  refused("tp=0", "`fix`: tp must be a whole number of at least 1, as in tp=1");
  refused("tp=-2", "`fix`: tp must be a whole number of at least 1, as in tp=1");
  refused("tp=2=2", "`fix`: tp must be a whole number of at least 1, as in tp=1");
  refused("pp=99999999999", "`fix`: pp must be a whole number of at least 1, as in pp=1");
  refused("tp=2,tp=2", "`fix`: has tp twice");
  refused("zero=4", "`fix`: zero must be 0, 1, 2 or 3");
}

TEST_CASE("planner: long sequences are split too, and the GPUs are those of all parts") {
  PlanRequest request = SmallMoe(16);
  Rejected rejected;
  for (const Configuration& each : ConfigurationsOf(request, &rejected)) CHECK(each.cp == 1);
  request.sequence = 8192;
  int split = 0;
  for (const Configuration& each : ConfigurationsOf(request, &rejected)) {
    split += each.cp == 2 ? 1 : 0;
    CHECK(each.tp * each.cp * each.pp * each.dp == 16);
    CHECK(each.replicas() * each.pp * each.parallel().devices() == 16);
    CHECK(each.dp * each.micro_batch * each.microbatches == request.global_batch);
  }
  CHECK(split > 0);
}

TEST_CASE("planner: without a configuration the error says which field to change") {
  Rejected rejected;
  PlanRequest request = SmallDense(16);
  request.fixed = ParseFixed("tp=1,pp=1");
  request.global_batch = 17;
  CHECK_THROWS_WITH_AS(
      ConfigurationsOf(request, &rejected),
      "`global_batch`: 17 sequences do not divide into whole micro-batches of any configuration; "
      "give a multiple of the replicas, such as 16, or `fix` less than pp=1,tp=1",
      Error);
  request.fixed = ParseFixed("tp=1000000,pp=2");
  CHECK_THROWS_WITH_AS(ConfigurationsOf(request, &rejected),
                       "`fix`: pp=2,tp=1000000 are 2000000 GPUs or more, which must divide the 16 "
                       "of `gpus`; fix less",
                       Error);
  request.fixed = ParseFixed("pp=2147483647");
  CHECK_THROWS_WITH_AS(ConfigurationsOf(request, &rejected),
                       "`fix`: pp=2147483647 is more than the 8 layers", Error);
  request.fixed = ParseFixed("ep=8");
  CHECK_THROWS_WITH_AS(ConfigurationsOf(request, &rejected),
                       "`fix`: ep=8 is for experts; the model has none", Error);
}

TEST_SUITE_END();

}  // namespace contraflow::planner_test
