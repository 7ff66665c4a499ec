#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>

#include "runtime/exec/gpu.h"
#include "tests/support/failure.h"

namespace contraflow::sm_budget_test {
namespace {

constexpr SmUse kExperts = {.links = 2, .experts = true},
                kAll = {.links = 2, .experts = true, .sums = true};
constexpr SmUse kUses[] = {{},   kExperts,     {.sums = true},
                           kAll, {.links = 2}, {.links = 4, .experts = true, .sums = true}};

TEST_SUITE("unit") {
  TEST_CASE("SM budget: an H200") {
    const SmBudget one = BudgetOf(132, 1, kExperts);
    CHECK(one.partitions == 1);
    CHECK(one.sms == 0);
    CHECK(one.link_ctas == 2);
    CHECK(one.expert_ctas == 16);
    CHECK(one.sum_ctas == 16);
    CHECK(one.compute == 112);
    CHECK(BudgetOf(132, 1, {.links = 2}).compute == 128);
    CHECK(BudgetOf(132, 1, {.links = 2, .sums = true}).compute == 124);
    CHECK(BudgetOf(132, 2, kExperts).sms == 64);
    CHECK(BudgetOf(132, 4, kExperts).sms == 32);
    CHECK(BudgetOf(132, 8, kExperts).sms == 16);
    CHECK(BudgetOf(132, 16, kExperts).sms == 8);
    CHECK(BudgetOf(132, 1, kExperts, 132).sms == 0);
    const auto shares = [](int devices) {
      const SmBudget budget = BudgetOf(132, devices, kAll);
      return std::array<int, 4>{budget.compute, budget.link_ctas, budget.expert_ctas,
                                budget.sum_ctas};
    };
    CHECK(shares(1) == std::array<int, 4>{108, 2, 16, 4});
    CHECK(shares(2) == std::array<int, 4>{52, 1, 8, 2});
    CHECK(shares(3) == std::array<int, 4>{32, 1, 5, 1});
    CHECK(shares(4) == std::array<int, 4>{25, 1, 4, 1});
    CHECK(shares(8) == std::array<int, 4>{11, 1, 2, 1});
    CHECK(shares(16) == std::array<int, 4>{4, 1, 1, 1});
    // One device as one of four has it, for what is to be the same bits.
    const SmBudget fourth = BudgetOf(132, 4, kAll), alone = BudgetOf(132, 1, kAll, 32);
    CHECK(alone.partitions == 1);
    CHECK(alone.sms == fourth.sms);
    CHECK(alone.compute == fourth.compute);
    CHECK(alone.link_ctas == fourth.link_ctas);
    CHECK(alone.expert_ctas == fourth.expert_ctas);
  }

  TEST_CASE("SM budget: every SM is given once and none is left that one more could have had") {
    int fitting = 0, refused = 0;
    for (int sms = 1; sms <= 160; ++sms) {
      for (int devices = 1; devices <= 24; ++devices) {
        for (const SmUse use : kUses) {
          CAPTURE(sms);
          CAPTURE(devices);
          CAPTURE(use.experts);
          CAPTURE(use.sums);
          SmBudget budget;
          const std::string failure = Failure([&] { budget = BudgetOf(sms, devices, use); });
          const int least = use.links + use.experts + use.sums;
          const bool fits = devices == 1 ? sms > least : sms / kPartitionSms >= devices;
          CHECK((failure == "accepted") == fits);
          (fits ? fitting : refused) += 1;
          if (!fits) continue;
          const int each = devices == 1 ? sms : budget.sms;
          CHECK(budget.partitions == devices);
          CHECK(budget.compute + use.links * budget.link_ctas + budget.expert_ctas +
                    (use.sums ? budget.sum_ctas : 0) ==
                each);
          CHECK(budget.compute >= 1);
          CHECK(budget.link_ctas >= 1);
          CHECK(budget.link_ctas <= 2);
          CHECK((budget.expert_ctas > 0) == use.experts);
          CHECK(budget.expert_ctas <= 16);
          CHECK(budget.sum_ctas >= 1);
          CHECK(budget.sum_ctas <= (use.sums ? 4 : std::min(each, 16)));
          // Communication has about the share that it has of a whole H200.
          const int most = 2 * use.links + (use.experts ? 16 : 0) + (use.sums ? 4 : 0);
          CHECK(132 * (each - budget.compute) <= most * each + (use.links + 2) * 132);
          if (devices == 1) {
            CHECK(budget.sms == 0);
          } else {
            CHECK(each % kPartitionSms == 0);
            CHECK(each * devices <= sms);
            CHECK((each + kPartitionSms) * devices > sms);
          }
          // A choice can be asked for.
          const SmBudget asked = BudgetOf(sms, devices, use, budget.sms);
          CHECK(asked.sms == budget.sms);
          CHECK(asked.compute == budget.compute);
        }
      }
    }
    CHECK(fitting > 1000);
    CHECK(refused > 1000);
  }

  TEST_CASE("SM budget: larger partitions compute no less") {
    for (const SmUse use : kUses) {
      int before = 0;
      for (int sms = kPartitionSms; sms <= 128; sms += kPartitionSms) {
        const SmBudget budget = BudgetOf(132, 1, use, sms);
        CHECK(budget.sms == sms);
        CHECK(budget.compute > before);
        before = budget.compute;
      }
    }
  }

  TEST_CASE("SM budget: what does not fit says what does") {
    const auto refused = [](int sms, int devices, int wanted) {
      return Failure([&] { BudgetOf(sms, devices, kExperts, wanted); });
    };
    CHECK(
        refused(132, 17, 0) ==
        "a GPU of 132 SMs can stand for at most 16 devices (partitions of at least 8 SMs), not for "
        "17; compile the plan for fewer ranks, or run it on more GPUs");
    CHECK(refused(132, 5, 32) ==
          "5 partitions of 32 SMs do not fit a GPU of 132 SMs; 5 devices can have at most 24 each");
    CHECK(refused(132, 17, 8) ==
          "17 partitions of 8 SMs do not fit a GPU of 132 SMs; at most 16 devices do, of 8 each");
    for (const int wanted : {-8, 1, 7, 12, 33, 131}) {
      CHECK(Contains(refused(132, 1, wanted),
                     ": the SMs of a partition are a multiple of 8, and at least as many"));
    }
    CHECK(refused(2, 1, 0) ==
          "a GPU of 2 SMs has none left for compute: 3 are needed to communicate");
    CHECK(refused(132, 0, 0) == "a GPU stands for at least 1 device, not 0");
    CHECK(refused(132, -3, 8) == "a GPU stands for at least 1 device, not -3");
  }
}

}  // namespace
}  // namespace contraflow::sm_budget_test
