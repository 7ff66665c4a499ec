#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/nccl/links.h"
#include "tests/emulator/nccl_network.h"
#include "tests/runtime/transport/link_backend.h"
#include "tests/support/failure.h"
#include "tests/support/run_support.h"

namespace contraflow::nccl_links_test {
namespace {

NcclExchange ExchangeOf(const Plan& plan, Rows rows) {
  return {.local_experts = kLocal,
          .width = kWidth,
          .capacity = rows == Rows::kFixed ? kCapacity : 0,
          .expert_rows = plan.expert_parallel * kLocal * kCapacity};
}

/// A job over NCCL, each of whose processes has issued one step.
struct LinkedJob {
  explicit LinkedJob(const Plan& the_plan, Rows rows = Rows::kFixed,
                     const SmBudget& budget = {.link_ctas = 3, .expert_ctas = 20, .sum_ctas = 7},
                     bool puts = false)
      : plan(the_plan),
        holders(HoldersOfStage(plan)),
        order(RankOrder::kDefault, plan),
        network(order.processes(), NcclNetwork::Processes::kInTurn) {
    for (int p = 0; p < order.processes(); ++p) {
      Nccl& nccl = network.NcclOf(p);
      backends.push_back(std::make_unique<LinkBackend>(
          plan, order.DeviceOf(p), rows, [&](size_t bytes) { return nccl.NewMemory(bytes); }));
    }
    for (int p = 0; p < order.processes(); ++p) {
      links.push_back(std::make_unique<NcclLinks>(plan, ExchangeOf(plan, rows), order, p, budget,
                                                  network.NcclOf(p), network.GpuOf(p)));
      if (puts) links.back()->PutMessages([this](const std::string&) { return Places(); });
      links.back()->Connect("the one", *backends[static_cast<size_t>(p)]);
      connected.push_back(network.steps[static_cast<size_t>(p)].size());
      Issue(p);
      links.back()->Close();
    }
  }

  std::vector<std::string> Places() {
    std::vector<std::string> places;
    for (int p = 0; p < order.processes(); ++p) {
      places.push_back(
          NcclPuts::PlacesOf(plan, order.DeviceOf(p), *backends[static_cast<size_t>(p)]));
    }
    return places;
  }

  void Issue(int p) {
    GpuLinks& l = *links[static_cast<size_t>(p)];
    const Device device = order.DeviceOf(p);
    int32_t group = -1;
    for (const Instruction& i : plan.program(device.rank)) {
      if (group >= 0 && i.group != group) l.EndGroup();
      if (i.group >= 0 && i.group != group) l.BeginGroup();
      group = i.group;
      const Participant self = {device, &i, network.StreamOf(p),
                                backends[static_cast<size_t>(p)].get()};
      switch (WorkOf(i.op)) {
        case Work::kSend:
        case Work::kRecv:
          l.Transfer({&self, 1});
          break;
        case Work::kAllToAll:
          l.Exchange({&self, 1});
          break;
        case Work::kReduce:
          l.Sum({&self, 1});
          break;
        case Work::kCompute:
        case Work::kComponent:
        case Work::kStep:
        case Work::kOffload:
        case Work::kReload:
          break;
      }
    }
    if (group >= 0) l.EndGroup();
    std::vector<double>& numbers = gathered.emplace_back(DeviceCount(plan) * kNumbers, -1);
    for (size_t k = 0; k < kNumbers; ++k) numbers[k] = NumberOf(p, k);
    l.Gather(numbers.data(), kNumbers, network.StreamOf(p));
  }

  static constexpr size_t kNumbers = 3;
  static double NumberOf(int p, size_t k) { return 100 * p + static_cast<double>(k); }
  /// Every process has the numbers of all, first its own.
  void CheckGathered() {
    for (int p = 0; p < order.processes(); ++p) {
      std::vector<double> all;
      for (int j = 0; j < order.processes(); ++j) {
        for (size_t k = 0; k < kNumbers; ++k) {
          all.push_back(NumberOf((p + j) % order.processes(), k));
        }
      }
      CHECK(gathered[static_cast<size_t>(p)] == all);
    }
  }

  LinkBackend& At(Device device) { return *backends[static_cast<size_t>(order.ProcessOf(device))]; }

  /// The sums over a stage, added where they are in one order.
  std::vector<float> SumOf(int stage, int member, bool experts) {
    std::vector<float> sum;
    for (int replica = 0; replica < plan.data_parallel; ++replica) {
      for (int m = 0; m < plan.expert_parallel; ++m) {
        if (experts && m != member) continue;
        for (const int rank : holders[static_cast<size_t>(stage)]) {
          LinkBackend fresh(plan, {replica, m, rank});
          const std::span<float> part =
              experts ? fresh.ExpertGradients(stage) : fresh.Gradients(stage);
          if (sum.empty()) {
            sum.assign(part.begin(), part.end());
          } else {
            for (size_t k = 0; k < sum.size(); ++k) sum[k] += part[k];
          }
        }
      }
    }
    return sum;
  }

  /// Runs what was issued, and checks all that it has moved.
  void CheckAll() {
    REQUIRE_NOTHROW(network.Check());
    REQUIRE_NOTHROW(network.Run());
    for (const auto& backend : backends) CHECK_NOTHROW(backend->CheckMoved());
    CHECK(network.signals() == 0);
    CheckSums();
    CheckGathered();
    for (int p = 0; p < order.processes(); ++p) {
      CHECK(network.OpenOf(p) == 0);
      CHECK(network.RegisteredOf(p) == 0);
    }
  }

  void CheckSums() {
    for (int stage = 0; stage < plan.stages; ++stage) {
      for (const int rank : holders[static_cast<size_t>(stage)]) {
        for (int replica = 0; replica < plan.data_parallel; ++replica) {
          for (int member = 0; member < plan.expert_parallel; ++member) {
            LinkBackend& backend = At({replica, member, rank});
            const auto equal = [](std::span<float> a, const std::vector<float>& b) {
              return a.size() == b.size() &&
                     (b.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
            };
            CHECK(equal(backend.Gradients(stage), SumOf(stage, member, false)));
            CHECK(equal(backend.ExpertGradients(stage), SumOf(stage, member, true)));
          }
        }
      }
    }
  }

  const Plan plan;
  const std::vector<std::vector<int>> holders;
  RankOrder order;
  NcclNetwork network;
  std::vector<std::unique_ptr<LinkBackend>> backends;
  std::vector<std::unique_ptr<NcclLinks>> links;
  std::vector<size_t> connected;              // steps of each process behind the connecting
  std::vector<std::vector<double>> gathered;  // by process
};

Plan PlanOf(const char* schedule, int ranks, int members, int replicas, uint64_t seed) {
  Model model = GroupModel(1.0);
  model.experts = std::max(model.experts, kLocal * members);
  return PlanFor(model, schedule, ranks, 2 * ranks, members, Level::kBuffer, seed, replicas);
}

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
    // By the bytes: parcels of all rows that a member can have for another, and counts.
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
    CHECK(error.find(" in \"rank 1 to 0\" from 1\n  process 1 receives ") != std::string::npos);
    CHECK(error.find(" in \"rank 0 to 1\" from 0") != std::string::npos);
  }

  TEST_CASE("nccl links: one communicator an edge and use with CTAs of the budget") {
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
    // What is split off for others is none of a process.
    for (const NcclNetwork::Comm& comm : job.network.comms) {
      if (comm.name.find(" to ") != std::string::npos) CHECK(comm.members.size() == 2);
    }
  }

  TEST_CASE("nccl links: what is in flight at once fits beside compute") {
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
          // With one stage a rank nothing computes beside sums; DualPipe has each stage twice.
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

  TEST_CASE("nccl links: connecting reaches every pair that talks later") {
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

  TEST_CASE("nccl links: sums over many have groups of few messages with both ends in the same") {
    constexpr int kMany = 135;  // 268 messages at a time
    LinkedJob job(PlanOf("1f1b", 1, 1, kMany, 13));
    REQUIRE_NOTHROW(job.network.Check());
    REQUIRE_NOTHROW(job.network.Run());
    // By communicator, sender and receiver: which groups of the connecting its messages are in.
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

  TEST_CASE("nccl links: memory of the pipeline's and experts' messages is registered") {
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
              messages += name.find(" to ") != std::string::npos;
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

  TEST_CASE("nccl links: what is aborted takes no more calls and leaves nothing behind") {
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
}  // namespace contraflow::nccl_links_test
