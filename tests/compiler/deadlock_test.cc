// Plans that hang, plans that only look as if they would, and what a deadlock looks like in words.

#include <doctest/doctest.h>

#include <string>

#include "compiler/verify/verify.h"
#include "schedules/registry.h"
#include "tests/support/naive.h"
#include "tests/support/support.h"

namespace contraflow::deadlock_test {
namespace {

/// Two stages that exchange an activation and a gradient: rank 0 sends m1 forward while rank 1
/// sends the gradient of m0 back. `keys` goes on each of the four messages, one string a rank.
std::string Exchange(const std::string& first, const std::string& second) {
  return "rank\n F s0 m0\n SEND_F s0 m0 to=1\n F s0 m1\n"
         " SEND_F s0 m1 to=1" +
         first + "\n RECV_B s0 m0 from=1" + first +
         "\n"
         " BW s0 m0\n RECV_B s0 m1 from=1\n BW s0 m1\n STEP s0\n"
         "rank\n RECV_F s1 m0 from=0\n F s1 m0\n BW s1 m0\n"
         " SEND_B s1 m0 to=0" +
         second + "\n RECV_F s1 m1 from=0" + second +
         "\n"
         " F s1 m1\n BW s1 m1\n SEND_B s1 m1 to=0\n STEP s1\n";
}

TEST_SUITE("unit") {
  TEST_CASE("an exchange is a deadlock and with a group on both sides it is not") {
    const std::string deadlock =
        "deadlock: rank 0, instruction 3 (SEND_F s0 m1 to=1): rank 0 waits at 3 (SEND_F s0 m1 "
        "to=1) for rank 1, which waits at 3 (SEND_B s1 m0 to=0) for rank 0; change the order on "
        "one of them, or make the exchange one group on both sides\n";
    CHECK(FindingsText(PlanFromText(Exchange("", ""))) == deadlock);
    CHECK(RunSymbolically(PlanFromText(Exchange("", ""))) == "stuck: rank 0");
    const Plan grouped = PlanFromText(Exchange(" group=0", " group=0"));
    CHECK(FindingsText(grouped) == "");
    CHECK(RunSymbolically(grouped) == "");
    // The group numbers of two ranks have nothing to do with each other, and of two neighbours one
    // group is enough: it posts both messages, and the other side meets them one by one.
    CHECK(FindingsText(PlanFromText(Exchange(" group=7", " group=2"))) == "");
    CHECK(FindingsText(PlanFromText(Exchange(" group=0", ""))) == "");
    CHECK(RunSymbolically(PlanFromText(Exchange(" group=0", ""))) == "");
  }

  TEST_CASE("two groups side by side are two: what stands in the second waits for the first") {
    std::string text = Exchange(" group=0", " group=0");
    for (const char* const second : {"RECV_B s0 m0 from=1 group=", "RECV_F s1 m1 from=0 group="}) {
      text[text.find(second) + std::string(second).size()] = '1';
    }
    CHECK(FindingsText(PlanFromText(text)) ==
          "deadlock: rank 0, instruction 3 (SEND_F s0 m1 to=1 group=0): rank 0 waits at 3 (SEND_F "
          "s0 m1 to=1 group=0) for rank 1, which waits at 3 (SEND_B s1 m0 to=0 group=0) for rank "
          "0; change the order on one of them, or make the exchange one group on both sides\n");
    CHECK(RunSymbolically(PlanFromText(text)) == "stuck: rank 0");
  }

  TEST_CASE("a group waits for all its members: two of them in a circle are a deadlock") {
    // Rank 0 posts m0 with the answer to m0, which rank 1 cannot give before it has left the group.
    const Plan plan = PlanFromText(
        "rank\n F s0 m0\n SEND_F s0 m0 to=1 group=0\n RECV_B s0 m0 from=1 group=0\n BW s0 m0\n"
        " STEP s0\n"
        "rank\n RECV_F s1 m0 from=0 group=0\n SEND_B s1 m0 to=0 group=0\n F s1 m0\n BW s1 m0\n"
        " STEP s1\n");
    CHECK(FindingsText(plan) ==
          "producer: rank 1, instruction 1: SEND_B s1 m0 to=0 group=0 comes before its producer at "
          "3 (BW s1 m0); move it after\n");
    const Plan two = PlanFromText(
        "rank\n F s0 m0\n SEND_F s0 m0 to=1 group=0\n RECV_B s0 m0 from=1 group=0\n BW s0 m0\n"
        " STEP s0\n"
        "rank\n RECV_F s1 m0 from=0\n F s1 m0\n RECV_B s1 m0 from=2\n BW s1 m0\n"
        " SEND_F s1 m0 to=2\n SEND_B s1 m0 to=0\n STEP s1\n"
        "rank\n RECV_F s2 m0 from=1\n F s2 m0\n BW s2 m0\n SEND_B s2 m0 to=1\n STEP s2\n");
    CHECK(FindingsText(two) ==
          "deadlock: rank 1, instruction 2 (RECV_B s1 m0 from=2): rank 1 waits at 2 (RECV_B s1 m0 "
          "from=2) for rank 2, which waits at 0 (RECV_F s2 m0 from=1) for rank 1; change the order "
          "on one of them, or make the exchange one group on both sides\n");
    CHECK(RunSymbolically(two) == "stuck: rank 0");
  }

  TEST_CASE("reductions in different orders wait for each other") {
    const std::string forward = " F s0 m0\n F s1 m0\n BW s1 m0\n BW s0 m0\n";
    const std::string second = " F s0 m1\n F s1 m1\n BW s1 m1\n BW s0 m1\n";
    const std::string routes = "route 0 0 : 0\nroute 1 1 : 1\n";
    const std::string up = " REDUCE s0\n REDUCE s1\n STEP s0\n STEP s1\n";
    const std::string down = " REDUCE s1\n REDUCE s0\n STEP s0\n STEP s1\n";
    CHECK(FindingsText(PlanFromText(routes + "rank\n" + forward + up + "rank\n" + second + up)) ==
          "");
    const Plan crossed = PlanFromText(routes + "rank\n" + forward + up + "rank\n" + second + down);
    CHECK(FindingsText(crossed) ==
          "deadlock: rank 0, instruction 4 (REDUCE s0): rank 0 waits at 4 (REDUCE s0) for rank 1, "
          "which waits at 4 (REDUCE s1) for rank 0; change the order on one of them\n");
    CHECK(RunSymbolically(crossed) == "stuck: rank 0");
  }

  TEST_CASE("level compute: data flow in a circle") {
    const Plan plan = PlanFromText(
        "rank\n F s0 m0\n BW s0 m0\n F s0 m1\n BW s0 m1\n"
        "rank\n F s1 m0\n F s1 m1\n BW s1 m0\n BW s1 m1\n");
    CHECK(FindingsText(plan) ==
          "deadlock: rank 0, instruction 1 (BW s0 m0): rank 0 waits at 1 (BW s0 m0) for rank 1, "
          "which waits at 1 (F s1 m1) for rank 0; change the order on one of them\n");
  }

  TEST_CASE("level compute: an FB whose backward needs its own forward by way of another rank") {
    const Plan plan = PlanFromText("rank\n FB s0 m0 + s0 m0\nrank\n F s1 m0\n BW s1 m0\n");
    CHECK(FindingsText(plan) ==
          "order: rank 0, instruction 0: FB s0 m0 + s0 m0 overlaps a forward with its own "
          "backward, which needs it first; an FB takes two different micro-batches\n"
          "deadlock: rank 0, instruction 0 (FB s0 m0 + s0 m0): rank 0 waits at 0 (FB s0 m0 + s0 "
          "m0) for rank 1, which waits at 0 (F s1 m0) for rank 0; change the order on one of "
          "them\n");
  }

  TEST_CASE("of several circles the smallest is named without the ranks after it") {
    // Ranks 1 and 2 exchange head on; rank 0 waits for rank 1, rank 3 for rank 2.
    const Plan plan = PlanFromText(
        "route 0 1 2 3 : 0 1\n"
        "rank\n F s0 m0\n SEND_F s0 m0 to=1\n F s0 m1\n SEND_F s0 m1 to=1\n"
        " RECV_B s0 m0 from=1\n BW s0 m0\n RECV_B s0 m1 from=1\n BW s0 m1\n STEP s0\n"
        "rank\n RECV_F s1 m0 from=0\n F s1 m0\n SEND_F s1 m0 to=2\n RECV_F s1 m1 from=0\n"
        " F s1 m1\n SEND_F s1 m1 to=2\n RECV_B s1 m0 from=2\n BW s1 m0\n SEND_B s1 m0 to=0\n"
        " RECV_B s1 m1 from=2\n BW s1 m1\n SEND_B s1 m1 to=0\n STEP s1\n"
        "rank\n RECV_F s2 m0 from=1\n F s2 m0\n SEND_F s2 m0 to=3\n RECV_B s2 m0 from=3\n"
        " BW s2 m0\n SEND_B s2 m0 to=1\n RECV_F s2 m1 from=1\n F s2 m1\n SEND_F s2 m1 to=3\n"
        " RECV_B s2 m1 from=3\n BW s2 m1\n SEND_B s2 m1 to=1\n STEP s2\n"
        "rank\n RECV_F s3 m0 from=2\n F s3 m0\n BW s3 m0\n SEND_B s3 m0 to=2\n"
        " RECV_F s3 m1 from=2\n F s3 m1\n BW s3 m1\n SEND_B s3 m1 to=2\n STEP s3\n");
    CHECK(FindingsText(plan) ==
          "deadlock: rank 1, instruction 5 (SEND_F s1 m1 to=2): rank 1 waits at 5 (SEND_F s1 m1 "
          "to=2) for rank 2, which waits at 5 (SEND_B s2 m0 to=1) for rank 1; change the order on "
          "one of them, or make the exchange one group on both sides\n");
  }

  TEST_CASE("a circle of three") {
    // Each rank receives before it sends: 0 from 2, 1 from 0, 2 from 1.
    const Plan plan = PlanFromText(
        "route 0 1 : 0\nroute 1 2 : 1\nroute 2 0 : 2\n"
        "rank\n F s0 m0\n RECV_F s1 m2 from=2\n SEND_F s0 m0 to=1\n F s1 m2\n BW s1 m2\n"
        " SEND_B s1 m2 to=2 group=0\n RECV_B s0 m0 from=1 group=0\n BW s0 m0\n"
        " REDUCE s0\n REDUCE s1\n STEP s0\n STEP s1\n"
        "rank\n F s0 m1\n RECV_F s1 m0 from=0\n SEND_F s0 m1 to=2\n F s1 m0\n BW s1 m0\n"
        " SEND_B s1 m0 to=0 group=0\n RECV_B s0 m1 from=2 group=0\n BW s0 m1\n"
        " REDUCE s0\n REDUCE s1\n STEP s0\n STEP s1\n"
        "rank\n F s0 m2\n RECV_F s1 m1 from=1\n SEND_F s0 m2 to=0\n F s1 m1\n BW s1 m1\n"
        " SEND_B s1 m1 to=1 group=0\n RECV_B s0 m2 from=0 group=0\n BW s0 m2\n"
        " REDUCE s0\n REDUCE s1\n STEP s0\n STEP s1\n");
    CHECK(FindingsText(plan) ==
          "deadlock: rank 0, instruction 1 (RECV_F s1 m2 from=2): rank 0 waits at 1 (RECV_F s1 m2 "
          "from=2) for rank 2, which waits at 1 (RECV_F s1 m1 from=1) for rank 1, which waits at 1 "
          "(RECV_F s1 m0 from=0) for rank 0; change the order on one of them, or make the exchange "
          "one group on both sides\n");
  }
}

}  // namespace
}  // namespace contraflow::deadlock_test
