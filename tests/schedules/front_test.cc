// The front of time against memory, what would help, and what is advised about two copies.

#include "schedules/front.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "compiler/plan/error.h"
#include "compiler/verify/verify.h"
#include "schedules/compare.h"
#include "schedules/published/rows.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::front_test {
namespace {

CompareRequest RandomRequest(std::mt19937_64* random) {
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(*random);
  };
  const int ranks = 2 * draw(1, 2);
  CompareRequest request;
  request.spec = MakeSpec("", ranks, 2 * ranks + draw(0, 3), {});
  CostModel& costs = request.spec.costs;
  costs = UniformCosts(2 * draw(20, 90), 2 * draw(20, 90), 2 * draw(20, 90), draw(0, 9));
  if (draw(0, 1) == 0) {
    costs.memory = {.activation_bytes = 1000, .w_stash_bytes = 400, .parameter_bytes = {3000}};
    costs.memory->input_bytes = 100;
  }
  request.spec.search.placement = Placement::kAny;
  request.spec.search.budget = 150'000'000;
  return request;
}

}  // namespace

TEST_SUITE("property") {
  TEST_CASE("no schedule is both shorter and smaller than a point of the front") {
    std::mt19937_64 random(9);
    int points = 0, recomputed = 0;
    for (int round = 0; round < 6; ++round) {
      CompareRequest request = RandomRequest(&random);
      const bool bytes = request.spec.costs.memory.has_value();
      // Left to choose, nothing and all are among what is looked at.
      if (bytes && round % 2 == 0) request.spec.recompute.choice = Recompute::Choice::kAuto;
      const std::vector<FrontPoint> front = ParetoFront(request);
      REQUIRE(!front.empty());
      for (size_t i = 1; i < front.size(); ++i) {
        CHECK(front[i - 1].memory < front[i].memory);
        CHECK(front[i - 1].row.makespan() > front[i].row.makespan());
      }
      request.no_auto = true;
      using Choice = Recompute::Choice;
      for (const Choice choice : {Choice::kNone, Choice::kFull}) {
        if (choice == Choice::kFull && !bytes) continue;
        request.spec.recompute.choice = choice;
        for (const CompareRow& row : Compare(request)) {
          if (!row.report) continue;
          const double memory = bytes ? static_cast<double>(*row.total)
                                      : static_cast<double>(row.report->peak_activations()) *
                                            request.spec.ranks / row.stages;
          CAPTURE(row.schedule);
          CHECK(std::ranges::any_of(front, [&](const FrontPoint& point) {
            return point.memory <= memory && point.row.makespan() <= row.makespan();
          }));
        }
      }
      points += static_cast<int>(front.size());
      for (const FrontPoint& point : front) recomputed += !point.row.recomputed.empty();
    }
    CHECK(points > 12);
    CHECK(recomputed > 2);
  }

  TEST_CASE("no compile within what a rank holds in all beats a front by much") {
    std::mt19937_64 random(12);
    double sum = 0, worst = 1;
    int compared = 0;
    for (int round = 0; round < CasesToDraw(6); ++round) {
      CompareRequest request = RandomRequest(&random);
      request.spec.costs.memory = {.activation_bytes = 1000 + 10 * (round % 3),
                                   .w_stash_bytes = 400,
                                   .parameter_bytes = {3000}};
      request.spec.costs.memory->input_bytes = 100;
      request.spec.search.placement = Placement::kAny;
      const std::vector<FrontPoint> front = ParetoFront(request);
      REQUIRE(front.size() > 1);
      for (const FrontPoint& point : front) {
        if (!point.device_memory) continue;
        CHECK(point.memory <= static_cast<double>(*point.device_memory));
      }
      request.spec.search.budget /= 18;
      request.spec.recompute.choice = Recompute::Choice::kAuto;
      const double least = front.front().memory, most = front.back().memory;
      for (const double share : {0.0, 0.2, 0.4, 0.6, 0.8, 1.0}) {
        const double device = least + (most - least) * share;
        request.spec.device_memory = static_cast<int64_t>(device);
        const CompareRow row = CompareSchedule(kAuto, request);
        REQUIRE(row.report);
        REQUIRE(row.fits);
        const auto above = std::ranges::find_if(
            front, [&](const FrontPoint& point) { return point.memory > device; });
        const double ratio = static_cast<double>(std::prev(above)->row.makespan()) /
                             static_cast<double>(row.makespan());
        worst = std::max(worst, ratio);
        sum += ratio;
        ++compared;
      }
    }
    MESSAGE("a front is at most " << worst << " times longer, " << sum / compared << " on average");
    CHECK(worst < 1.04);
    CHECK(sum / compared < 1.006);
  }

  TEST_CASE("what would help is what a comparison with that cost says") {
    std::mt19937_64 random(10);
    for (int round = 0; round < 4; ++round) {
      CompareRequest request = RandomRequest(&random);
      request.spec.costs.comm.latency = 10;
      request.memory_limit = "1x";
      const std::vector<CompareRow> rows = Compare(request);
      const CompareRow* const now = Shortest(rows);
      REQUIRE(now != nullptr);
      const std::vector<Variation> all = Vary(request, *now, {});
      CHECK(all.size() == 5);  // no all-to-all
      for (const Variation& variation : all) {
        CAPTURE(variation.name);
        CHECK(variation.gain >= 0);
        CHECK(variation.row.makespan() <= now->makespan());
        if (variation.name == "b") CHECK(variation.gain > 0);
      }
      CHECK(std::ranges::is_sorted(all,
                                   [](const auto& a, const auto& b) { return a.gain > b.gain; }));
      CompareRequest cheaper = request;
      StageCost& stage = cheaper.spec.costs.stages.front();
      const Time less = stage.f - static_cast<Time>(static_cast<double>(stage.f) * 0.9 + 0.5);
      stage.f -= less;
      stage.fb -= less;
      const std::vector<CompareRow> then = Compare(cheaper);
      const auto f = std::ranges::find_if(all, [](const auto& v) { return v.name == "f"; });
      REQUIRE(f != all.end());
      CHECK(f->row.makespan() == std::min(now->makespan(), Shortest(then)->makespan()));
    }
  }

  TEST_CASE("two copies of the parameters are advised for more than a hundredth only") {
    std::mt19937_64 random(11);
    int twice = 0, once = 0;
    for (int round = 0; round < CasesToDraw(24); ++round) {
      CompareRequest request = RandomRequest(&random);
      request.single_too = true;
      const std::vector<CompareRow> rows = Compare(request);
      const Advice advice = Advise(rows);
      REQUIRE(advice.row != nullptr);
      Time least = std::numeric_limits<Time>::max();
      for (const CompareRow& row : rows) {
        if (row.report && !row.twice) least = std::min(least, row.makespan());
      }
      if (rows.back().twice) {
        ++once;
        CHECK(rows[rows.size() - 2].schedule == "auto");
        CHECK_FALSE(rows[rows.size() - 2].twice);
      }
      if (!advice.row->twice) continue;
      ++twice;
      CHECK(static_cast<double>(advice.row->makespan()) < static_cast<double>(least) * 0.9999);
      CHECK(static_cast<double>(Shortest(rows)->makespan()) < static_cast<double>(least) * 0.99);
    }
    CHECK((kSanitized || once > 3));
    MESSAGE(twice << " of 24 with two copies, " << once << " where `any` had them");
  }
}

TEST_SUITE("unit") {
  TEST_CASE("what there is nothing of cannot vary") {
    CompareRequest request;
    request.spec = MakeSpec("", 2, 4, UniformCosts(10, 10, 10));
    request.no_auto = true;
    const std::vector<CompareRow> rows = Compare(request);
    const CompareRow& now = *Shortest(rows);
    const auto failure = [&](const char* name) {
      return Failure([&] { Vary(request, now, {name}); });
    };
    CHECK(failure("comm") == "`vary` comm: the costs have none");
    CHECK(failure("all-to-all") == "`vary` all-to-all: the costs have none");
    CHECK(failure("memory") == "`vary` memory: no memory limit is given");
  }

  TEST_CASE("limits below one activation are left out of a front") {
    CompareRequest request;
    request.spec = MakeSpec("", 2, 4, UniformCosts(10, 10, 10));
    request.spec.search.budget = 1'000'000;
    request.memory_limit = "1";
    const std::vector<FrontPoint> front = ParetoFront(request);
    REQUIRE(front.size() == 1);
    CHECK(front[0].memory == 1);
  }

  TEST_CASE("plans are kept where that is asked for") {
    CompareRequest request;
    request.spec = MakeSpec("", 2, 4, UniformCosts(10, 10, 10));
    request.spec.search.budget = 1'000'000;
    for (const CompareRow& row : Compare(request)) CHECK_FALSE(row.plan);
    request.keep_plans = true;
    const std::vector<CompareRow> rows = Compare(request);
    const Advice advice = Advise(rows);
    REQUIRE(advice.row->plan);
    CHECK(Verify(*advice.row->plan).empty());
  }
}

}  // namespace contraflow::front_test
