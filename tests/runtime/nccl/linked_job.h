#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "runtime/nccl/links.h"
#include "tests/emulator/nccl_network.h"
#include "tests/runtime/transport/link_backend.h"
#include "tests/support/run_support.h"

namespace contraflow {

inline NcclExchange ExchangeOf(const Plan& plan, Rows rows) {
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
  std::vector<size_t> connected;              // steps of each process after the connecting
  std::vector<std::vector<double>> gathered;  // by process
};

inline Plan PlanOf(const char* schedule, int ranks, int members, int replicas, uint64_t seed) {
  Model model = GroupModel(1.0);
  model.experts = std::max(model.experts, kLocal * members);
  return PlanFor(model, schedule, ranks, 2 * ranks, members, Level::kBuffer, seed, replicas);
}

}  // namespace contraflow
