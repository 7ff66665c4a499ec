#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tests/emulator/nccl_network.h"
#include "tests/runtime/nccl/linked_job.h"
#include "tests/runtime/transport/link_backend.h"
#include "tests/support/failure.h"

namespace contraflow::nccl_links_test {
namespace {

TEST_SUITE("unit") {
  TEST_CASE("nccl links: what is issued meets its counterparts however strict NCCL is") {
    uint64_t seed = 1;
    for (const char* schedule : {"1f1b", "zb-1p", "dualpipe"}) {
      for (const auto& [ranks, members, replicas] :
           {std::tuple(2, 1, 1), std::tuple(4, 1, 1), std::tuple(2, 2, 1), std::tuple(4, 2, 1),
            std::tuple(2, 1, 2), std::tuple(2, 2, 2)}) {
        CAPTURE(schedule);
        CAPTURE(ranks);
        CAPTURE(members);
        CAPTURE(replicas);
        ++seed;
        LinkedJob job(PlanOf(schedule, ranks, members, replicas, seed),
                      seed % 2 == 0 ? Rows::kFixed : Rows::kAny);
        job.CheckAll();
      }
    }
  }

  TEST_CASE(
      "nccl links: groups of more members than one kernel reaches, as many rows as there are") {
    for (const auto& [members, rows] :
         {std::tuple(3, Rows::kAny), std::tuple(17, Rows::kAny), std::tuple(17, Rows::kFixed)}) {
      CAPTURE(members);
      LinkedJob job(PlanOf("1f1b", 1, members, 1, 6), rows);
      job.CheckAll();
    }
  }

  TEST_CASE("nccl links: what members exchange has a size that no count changes") {
    const Plan plan = PlanOf("1f1b", 2, 2, 1, 1);
    LinkedJob job(plan, Rows::kAny);
    // Messages by the bytes: parcels of all rows that a member can have for another, and counts.
    std::map<size_t, int> messages;
    for (size_t at = job.connected[0]; at < job.network.steps[0].size(); ++at) {
      for (const NcclNetwork::Message& m : job.network.steps[0][at].messages) {
        if (job.network.comms[static_cast<size_t>(m.comm)].name == "experts") ++messages[m.bytes];
      }
    }
    int forwards = 0, exchanges = 0;
    for (const Instruction& i : plan.program(0)) {
      forwards += i.op == Op::DISPATCH_F;
      exchanges += WorkOf(i.op) == Work::kAllToAll;
    }
    CHECK(forwards > 0);
    CHECK(messages == std::map<size_t, int>{{(kLocal + 1) * sizeof(int32_t), 2 * forwards},
                                            {2 * kLocal * kCapacity * kWidth, 2 * exchanges}});
  }

  TEST_CASE("nccl links: an order that is broken ends in a deadlock or meets wrong messages") {
    int noticed = 0, tried = 0;
    std::mt19937 random(5);
    for (const char* schedule : {"1f1b", "dualpipe"}) {
      LinkedJob job(PlanOf(schedule, 4, 1, 1, 7));
      for (size_t p = 0; p < job.network.steps.size(); ++p) {
        const std::vector<NcclNetwork::Step> issued = job.network.steps[p];
        std::vector<NcclNetwork::Step>& steps = job.network.steps[p];
        std::vector<size_t> groups;
        for (size_t at = 0; at < steps.size(); ++at) {
          if (!steps[at].messages.empty()) groups.push_back(at);
        }
        for (int k = 0; k < 4; ++k) {
          const size_t a = random() % groups.size(), b = random() % groups.size();
          if (a == b) continue;
          std::swap(steps[groups[a]], steps[groups[b]]);
          ++tried;
          noticed += Failure([&] { job.network.Run(); }) != "accepted";
          steps = issued;
        }
      }
      CHECK(Failure([&] { job.network.Run(); }) == "accepted");
    }
    CHECK(tried > 20);
    CHECK(noticed * 2 > tried);
  }

  TEST_CASE("nccl links: two ranks that both send first wait for ever") {
    LinkedJob job(PlanOf("1f1b", 2, 1, 1, 3));
    std::vector<NcclNetwork::Step>& steps = job.network.steps[0];
    const auto first = steps.begin() + static_cast<ptrdiff_t>(job.connected[0]);
    const auto receives = [](const NcclNetwork::Step& step) {
      return !step.messages.empty() && !step.messages[0].sends;
    };
    // Rank 0 begins with what it gets last from rank 1.
    const auto back = std::find_if(first, steps.end(), receives);
    REQUIRE(back != steps.end());
    std::rotate(first, back, back + 1);
    const std::string error = Failure([&] { job.network.Run(); });
    INFO(error);
    CHECK(error.find("deadlock:\n  process 0 receives ") == 0);
    CHECK(Contains(error, " in \"rank 1 to 0\" from 1\n  process 1 receives "));
    CHECK(Contains(error, " in \"rank 0 to 1\" from 0"));
  }

  TEST_CASE("nccl links: sums over many have groups of few messages with both ends in the same") {
    constexpr int kMany = 135;  // 268 messages at a time
    LinkedJob job(PlanOf("1f1b", 1, 1, kMany, 13));
    REQUIRE_NOTHROW(job.network.Check());
    REQUIRE_NOTHROW(job.network.Run());
    // Groups by communicator, sender and receiver: those of the connecting that its messages are
    // in.
    std::map<std::tuple<int, int, int>, std::pair<std::vector<int>, std::vector<int>>> pairs;
    size_t most = 0;
    for (int p = 0; p < kMany; ++p) {
      int group = 0;
      const std::vector<NcclNetwork::Step>& steps = job.network.steps[static_cast<size_t>(p)];
      for (size_t at = 0; at < steps.size(); ++at) {
        const NcclNetwork::Step& step = steps[at];
        if (step.messages.empty()) continue;
        most = std::max(most, step.messages.size());
        // Later there are groups of nothing, where slices are empty.
        if (at >= job.connected[static_cast<size_t>(p)]) continue;
        for (const NcclNetwork::Message& m : step.messages) {
          auto& [sent, received] =
              pairs[m.sends ? std::tuple(m.comm, p, m.peer) : std::tuple(m.comm, m.peer, p)];
          (m.sends ? sent : received).push_back(group);
        }
        ++group;
      }
    }
    CHECK(most == 256);
    CHECK(pairs.size() == static_cast<size_t>(kMany) * (kMany - 1));
    for (const auto& [pair, groups] : pairs) CHECK(groups.first == groups.second);
  }

  TEST_CASE("nccl links: puts meet their receivers, and hold no CTA") {
    for (const char* schedule : {"1f1b", "dualpipe", "zb-v"}) {
      for (const auto& [ranks, members] : {std::tuple(2, 1), std::tuple(4, 1), std::tuple(2, 2)}) {
        CAPTURE(schedule);
        CAPTURE(ranks);
        LinkedJob job(PlanOf(schedule, ranks, members, 1, 14), Rows::kAny,
                      {.expert_ctas = 4, .sum_ctas = 4}, true);
        job.CheckAll();
        int messages = 0;
        for (size_t p = 0; p < job.network.steps.size(); ++p) {
          for (size_t at = job.connected[p]; at < job.network.steps[p].size(); ++at) {
            for (const NcclNetwork::Message& m : job.network.steps[p][at].messages) {
              const std::string& name = job.network.comms[static_cast<size_t>(m.comm)].name;
              messages += Contains(name, " to ");
            }
          }
        }
        CHECK(messages == 0);
      }
    }
  }

  TEST_CASE("nccl links: a signal that is missing is waited for, or left over") {
    int noticed = 0, tried = 0;
    LinkedJob job(PlanOf("dualpipe", 2, 1, 1, 7), Rows::kFixed, {.sum_ctas = 4}, true);
    for (std::vector<NcclNetwork::Step>& steps : job.network.steps) {
      for (NcclNetwork::Step& step : steps) {
        if (!step.alone) continue;
        std::optional<NcclNetwork::OneSided> lost;
        std::swap(lost, step.alone);
        ++tried;
        noticed += Failure([&] { job.network.Run(); }) != "accepted" || job.network.signals() != 0;
        std::swap(lost, step.alone);
        for (NcclNetwork::Comm& comm : job.network.comms) comm.signals.clear();
      }
    }
    CHECK(tried > 30);
    CHECK(noticed == tried);
  }
}

}  // namespace
}  // namespace contraflow::nccl_links_test
