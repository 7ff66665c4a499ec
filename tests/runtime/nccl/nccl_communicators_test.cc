// Objects of NCCL that a process has: communicators, their memory, and what is left of them.

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "runtime/nccl/links.h"
#include "tests/emulator/nccl_network.h"
#include "tests/runtime/nccl/linked_job.h"
#include "tests/runtime/transport/link_backend.h"
#include "tests/support/failure.h"

namespace contraflow::nccl_communicators_test {
namespace {

TEST_SUITE("unit") {
  TEST_CASE("nccl communicators: one communicator an edge and use with CTAs of the budget") {
    LinkedJob job(PlanOf("dualpipe", 4, 2, 1, 9));
    std::map<std::string, int> ctas, count;
    for (const NcclNetwork::Comm& comm : job.network.comms) {
      if (comm.name == "none") continue;
      ctas[comm.name] = comm.max_ctas;
      ++count[comm.name];
    }
    // 3 CTAs for a link, 20 for experts and 7 for sums are no powers of two.
    std::map<std::string, int> expected = {{"all", 1}, {"experts", 16}, {"sums", 4}};
    for (const auto& [low, high] :
         {std::pair("0", "1"), std::pair("1", "2"), std::pair("2", "3")}) {
      for (const auto& [from, to] : {std::pair(low, high), std::pair(high, low)}) {
        const std::string name = std::string("rank ") + from + " to " + to;
        expected[name] = 2;
        CHECK(count[name] == 2);  // one for each pipeline
      }
    }
    CHECK(ctas == expected);
    CHECK(count["all"] == 1);
    CHECK(count["experts"] == 4);
    CHECK(count["sums"] == 1);
    // A communicator that is split off for others is none of a process.
    for (const NcclNetwork::Comm& comm : job.network.comms) {
      if (Contains(comm.name, " to ")) CHECK(comm.members.size() == 2);
    }
  }

  TEST_CASE("nccl communicators: what is in flight at once fits beside compute") {
    constexpr int kSms = 132;
    for (const auto& [schedule, stages_a_rank, two_copies] :
         {std::tuple("1f1b", 1, false), std::tuple("zb-v", 2, false),
          std::tuple("dualpipe", 2, true)}) {
      for (const int members : {1, 2}) {
        for (const int replicas : {1, 2}) {
          CAPTURE(schedule);
          CAPTURE(members);
          CAPTURE(replicas);
          const Plan plan = PlanOf(schedule, 2, members, replicas, 4);
          const SmUse use = UseOf(plan);
          CHECK(use.experts == (members > 1));
          // With one stage a rank nothing computes during sums; DualPipe has each stage twice.
          CHECK(use.sums == (stages_a_rank > 1 && (members * replicas > 1 || two_copies)));
          const SmBudget budget = BudgetOf(kSms, 1, use);
          LinkedJob job(plan, Rows::kFixed, budget);
          int fullest = 0;
          for (int p = 0; p < job.order.processes(); ++p) {
            int resident = budget.compute;
            for (const NcclNetwork::Comm& comm : job.network.comms) {
              const bool has =
                  std::ranges::count(comm.members, p, &std::pair<int, int>::second) > 0;
              // "all" carries nothing once the others are split off it.
              const bool used =
                  comm.name != "all" && comm.name != "none" && (comm.name != "sums" || use.sums);
              if (has && used) resident += comm.max_ctas;
            }
            fullest = std::max(fullest, resident);
          }
          CHECK(fullest == kSms);
        }
      }
    }
  }

  TEST_CASE("nccl communicators: connecting reaches every pair that talks later") {
    LinkedJob job(PlanOf("dualpipe", 4, 2, 2, 11));
    for (size_t p = 0; p < job.network.steps.size(); ++p) {
      std::set<std::tuple<int, int, bool>> connected;
      const std::vector<NcclNetwork::Step>& steps = job.network.steps[p];
      int new_ones = 0;
      for (size_t at = 0; at < steps.size(); ++at) {
        for (const NcclNetwork::Message& m : steps[at].messages) {
          const std::tuple pair(m.comm, m.peer, m.sends);
          if (at < job.connected[p]) {
            connected.insert(pair);
          } else {
            new_ones += connected.count(pair) == 0;
          }
        }
      }
      CHECK(connected.size() > 4);
      CHECK(new_ones == 0);
    }
  }

  TEST_CASE("nccl communicators: memory of the pipeline's and experts' messages is registered") {
    LinkedJob job(PlanOf("dualpipe", 2, 2, 1, 8), Rows::kAny);
    std::map<std::string, std::pair<int, int>> registered;  // messages, and those that are
    for (size_t p = 0; p < job.network.steps.size(); ++p) {
      for (size_t at = job.connected[p]; at < job.network.steps[p].size(); ++at) {
        for (const NcclNetwork::Message& m : job.network.steps[p][at].messages) {
          auto& [all, with] = registered[job.network.comms[static_cast<size_t>(m.comm)].name];
          ++all;
          with += m.registered;
        }
      }
    }
    for (const char* const name : {"rank 0 to 1", "rank 1 to 0", "experts"}) {
      CAPTURE(name);
      CHECK(registered[name].first > 0);
      CHECK(registered[name].first == registered[name].second);
    }
    // Gradients are no memory of NCCL's.
    CHECK(registered["sums"].first > 0);
    CHECK(registered["sums"].second == 0);
  }

  TEST_CASE(
      "nccl communicators: what is aborted takes no more calls and leaves nothing allocated") {
    const Plan plan = PlanOf("1f1b", 2, 1, 1, 1);
    const RankOrder order(RankOrder::kDefault, plan);
    NcclNetwork network(order.processes(), NcclNetwork::Processes::kInTurn);
    LinkBackend backend(plan, order.DeviceOf(0), Rows::kFixed,
                        [&](size_t bytes) { return network.NcclOf(0).NewMemory(bytes); });
    {
      NcclLinks links(plan, {}, order, 0, {.link_ctas = 2}, network.NcclOf(0), network.GpuOf(0));
      links.Connect("the one", backend);
      CHECK(network.OpenOf(0) == 4);        // all, both ways, sums
      CHECK(network.RegisteredOf(0) == 2);  // both ways
      links.Poll();
      std::thread([&] { links.Abort(); }).join();
      CHECK_THROWS_AS(links.Poll(), Aborted);
      CHECK_THROWS_AS(links.BeginGroup(), Aborted);
      CHECK_THROWS_AS(links.Close(), Aborted);
    }
    CHECK(network.OpenOf(0) == 0);
    CHECK(network.RegisteredOf(0) == 0);
    // NCCL would wait for the peer, which may be what has failed.
    CHECK(network.DeregisteredOf(0) == 0);
    // One that is never closed, after an error, is aborted.
    NcclNetwork other(order.processes(), NcclNetwork::Processes::kInTurn);
    LinkBackend again(plan, order.DeviceOf(0), Rows::kFixed,
                      [&](size_t bytes) { return other.NcclOf(0).NewMemory(bytes); });
    NcclLinks(plan, {}, order, 0, {.link_ctas = 2}, other.NcclOf(0), other.GpuOf(0))
        .Connect("the one", again);
    CHECK(other.OpenOf(0) == 0);
    CHECK(other.RegisteredOf(0) == 0);
  }
}

}  // namespace
}  // namespace contraflow::nccl_communicators_test
