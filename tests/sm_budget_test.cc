#include "runtime/sm_budget.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/failure.h"

namespace contraflow {
namespace {

TEST_SUITE("unit") {
  TEST_CASE("SM budget: an H200") {
    const SmBudget one = BudgetOf(132, 1, true);
    CHECK(one.partitions == 1);
    CHECK(one.sms == 0);
    CHECK(one.link_ctas == 4);
    CHECK(one.expert_ctas == 16);
    CHECK(one.compute == 112);
    CHECK(BudgetOf(132, 1, false).compute == 128);
    CHECK(BudgetOf(132, 2, true).sms == 64);
    CHECK(BudgetOf(132, 4, true).sms == 32);
    CHECK(BudgetOf(132, 8, true).sms == 16);
    CHECK(BudgetOf(132, 16, true).sms == 8);
    CHECK(BudgetOf(132, 1, true, 132).sms == 0);
    // One device as one of four has it, for what is to be the same bits.
    const SmBudget fourth = BudgetOf(132, 4, true), alone = BudgetOf(132, 1, true, 32);
    CHECK(alone.partitions == 1);
    CHECK(alone.sms == fourth.sms);
    CHECK(alone.compute == fourth.compute);
    CHECK(alone.link_ctas == fourth.link_ctas);
    CHECK(alone.expert_ctas == fourth.expert_ctas);
  }
}

}  // namespace
}  // namespace contraflow
