// Devices that are processes of their own train like threads of one: the same losses and weights,
// bit for bit; and what is different between them.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/launch/threaded_run.h"
#include "schedules/registry.h"
#include "tests/runtime/transport/parcel.h"
#include "tests/runtime/transport/process_network.h"
#include "tests/support/failure.h"
#include "tests/support/run_support.h"
#include "tests/support/support.h"

namespace contraflow::wire_transport_test {
namespace {

using Over = Transport::Over;

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

/// The first device and stage whose weights or gradients differ from those of a run of threads
/// after this many steps, or "".
std::string Difference(const Plan& plan, const Model& model, bool strict, std::string_view order,
                       int steps = 2) {
  const Dataset dataset = SmallDataset();
  ThreadedRun threads(plan, model, dataset, 7, {.strict = strict});
  ProcessNetwork network(plan, {.strict = strict}, order);
  std::vector<std::unique_ptr<HostBackend>> backends;
  std::vector<Worker> workers;
  for (const Device device : AllDevices(plan)) {
    Transport& transport = network.At(device);
    backends.push_back(std::make_unique<HostBackend>(plan, model, dataset, 7, device, transport));
    workers.push_back({device, backends.back().get(), &transport});
  }
  Launch launch(plan, workers);
  int compared = 0;
  for (int step = 1; step <= steps; ++step) {
    const StepResult expected = threads.Step(step);
    launch.Step(step);
    std::vector<DeviceStep> done;
    for (size_t w = 0; w < workers.size(); ++w) {
      done.push_back(backends[w]->Results(launch.spans(w)));
    }
    const StepResult result = JoinDevices(plan, done, 0);
    if (!SameBits(result.losses, expected.losses)) return "losses";
    if (result.dropped != expected.dropped) return "dropped pairs";
    for (size_t w = 0; w < workers.size(); ++w) {
      for (int stage = 0; stage < plan.stages; ++stage) {
        const int rank = workers[w].device.rank;
        const std::vector<int> holders = HoldersOfStage(plan)[static_cast<size_t>(stage)];
        if (std::ranges::find(holders, rank) == holders.end()) continue;
        Stage& a = backends[w]->StageAt(stage);
        Stage& b = threads.At(workers[w].device).StageAt(stage);
        if (!SameBits(a.gradients(), b.gradients()) || !SameBits(a.parameters(), b.parameters())) {
          return "worker " + std::to_string(w) + " stage " + std::to_string(stage);
        }
        ++compared;
      }
    }
  }
  CHECK(compared >= steps * plan.ranks);
  return "";
}

/// A device that hangs in one instruction until it is let go.
class HangingBackend : public HostBackend {
 public:
  using HostBackend::HostBackend;
  void Compute(const Instruction& i) override {
    while (hangs && i.op == Op::BW) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    HostBackend::Compute(i);
  }
  std::atomic<bool> hangs = true;
};

Plan SimplePlan(const std::string& schedule, int ranks, int microbatches, int data_parallel) {
  Spec spec = MakeSpec(schedule, ranks, microbatches, UniformCosts(3, 4, 2, 1));
  spec.data_parallel = data_parallel;
  return Compile(spec);
}

TEST_SUITE("unit") {
  TEST_CASE("threads: a rank that hangs in its own work is told of after the timeout") {
    const Plan plan = SimplePlan("1f1b", 2, 2, 1);
    const Dataset dataset = SmallDataset();
    const Model model = FitModel(SmallModel(2), plan);
    for (const bool alone : {false, true}) {
      CAPTURE(alone);
      // If the other waits for a message, it gives up first.
      const std::chrono::milliseconds timeout(200);
      ThreadNetwork network(2, 1, 1, {.timeout = alone ? std::chrono::hours(1) : timeout});
      HostBackend first(plan, model, dataset, 7, {0, 0, 0}, network.At({0, 0, 0}));
      HangingBackend second(plan, model, dataset, 7, {0, 0, 1}, network.At({0, 0, 1}));
      const std::vector<Worker> workers = {{{0, 0, 0}, &first, &network.At({0, 0, 0})},
                                           {{0, 0, 1}, &second, &network.At({0, 0, 1})}};
      std::string told;
      ThreadNetwork::Options options = {.timeout = timeout};
      options.stuck = [&](const std::exception_ptr& error) {
        told = Failure([&] { std::rethrow_exception(error); });
        second.hangs = false;
      };
      Launch launch(plan, workers, options);
      const std::string error = Failure([&] { launch.Step(1); });
      const std::string silent = "no rank has made progress for 0.2 s";
      if (alone) {
        CHECK(error == "accepted");
        CHECK(told.starts_with(silent + ": rank "));
        CHECK(told.ends_with("; allow more time with `timeout`"));
      } else {
        CHECK(told == error);
        CHECK(Contains(told, silent));
      }
    }
  }

  TEST_CASE("wire transport: a training equals that of threads bit for bit") {
    for (const bool strict : {false, true}) {
      CAPTURE(strict);
      for (const std::string schedule : {"1f1b", "zb-1p", "dualpipe"}) {
        CAPTURE(schedule);
        const Plan plan = SimplePlan(schedule, 4, 8, 1);
        CHECK(Difference(plan, SmallModel(plan.stages), strict, "ep-dp-pp") == "");
      }
      const Plan replicas = SimplePlan("1f1b", 2, 4, 2);
      CHECK(Difference(replicas, SmallModel(replicas.stages), strict, "pp-dp-ep") == "");
      const Plan both = SimplePlan("dualpipe", 2, 4, 2);
      CHECK(Difference(both, SmallModel(both.stages), strict, "dp-ep-pp") == "");
    }
  }

  TEST_CASE("wire transport: expert groups train like those of threads bit for bit") {
    const Model model = GroupModel(1.0f);
    for (const bool strict : {false, true}) {
      CAPTURE(strict);
      for (const std::string order : {"ep-dp-pp", "pp-ep-dp"}) {
        CAPTURE(order);
        const Plan plan = PlanFor(model, "1f1b", 2, 4, 2, Level::kComponent, 3);
        CHECK(Difference(plan, FitModel(model, plan.stages, plan.layers, 2), strict, order) == "");
      }
      const Plan replicas = PlanFor(model, "zb-1p", 2, 3, 2, Level::kBuffer, 4, 2);
      CHECK(Difference(replicas, FitModel(model, replicas.stages, replicas.layers, 2), strict,
                       "ep-dp-pp", 1) == "");
    }
  }

  TEST_CASE("wire transport: a message takes from its label to its bytes") {
    ProcessNetwork network(2, 1, 1, {});
    Parcel receive("RECV_F s1 m0 from=0", {0}), send("SEND_F s0 m0 to=1", {7});
    const Clock::time_point before = Clock::now();
    Post(network.At({0, 0, 1}), receive);
    const Clock::time_point posted = Clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const Clock::time_point late = Clock::now();
    Post(network.At({0, 0, 0}), send);
    network.At({0, 0, 1}).Wait(receive.transfer);
    network.At({0, 0, 0}).Wait(send.transfer);
    CHECK(before <= posted);
    CHECK(receive.transfer.start >= late);
    CHECK(receive.transfer.start <= receive.transfer.end);
    CHECK(send.transfer.start >= late);
    CHECK(send.transfer.start <= send.transfer.end);
  }

  TEST_CASE("wire transport: a process says whom it waits for and for what") {
    const Plan plan = TwoRankPlan(2);
    ProcessNetwork network(plan, {});
    const auto waits_for = [&](Device device, int process, int64_t instruction, const auto& wait) {
      const Progress& progress = network.ProgressOf(device);
      std::string failure;
      std::jthread waiter([&] { failure = Failure(wait); });
      Progress::Snapshot at = progress.Read();
      while (at.process == Progress::kNobody) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        at = progress.Read();
      }
      network.At(device).Abort();
      waiter.join();
      CHECK(at.process == process);
      CHECK(at.waited == instruction);
      CHECK(failure == "stopped because another rank failed");
    };
    // Replicas change faster than ranks: process 2 is rank 1 of replica 0.
    SUBCASE("of a message") {
      Parcel receive("RECV_B s0 m1 from=1", {0});
      Transport& transport = network.At({0, 0, 0});
      Post(transport, receive);
      waits_for({0, 0, 0}, 2, 7, [&] { transport.Wait(receive.transfer); });
    }
    SUBCASE("of a sum") {
      std::vector<float> values = {1};
      const int holders[] = {1};
      waits_for({1, 0, 1}, 2, -1, [&] {
        network.At({1, 0, 1}).Sum(StageOp(Op::REDUCE, 1), Over::kAllMembers, holders, values);
      });
    }
  }

  TEST_CASE("wire transport: nobody is waited for once it is there") {
    ProcessNetwork network(2, 1, 1, {});
    Parcel receive("RECV_F s1 m0 from=0", {0}), send("SEND_F s0 m0 to=1", {7});
    Post(network.At({0, 0, 1}), receive);
    const uint64_t moves = network.ProgressOf({0, 0, 1}).Read().moves;
    std::jthread late([&] {
      while (network.ProgressOf({0, 0, 1}).Read().process != 0) std::this_thread::yield();
      Post(network.At({0, 0, 0}), send);
      network.At({0, 0, 0}).Wait(send.transfer);
    });
    network.At({0, 0, 1}).Wait(receive.transfer);
    CHECK(network.ProgressOf({0, 0, 1}).Read().process == Progress::kNobody);
    CHECK(network.ProgressOf({0, 0, 1}).Read().moves > moves);
  }

  TEST_CASE("wire transport: the time of a sum is when the last one came") {
    ProcessNetwork network(1, 3, 1, {});
    const int holders[] = {0};
    Clock::time_point came[3], returned[3], last;
    {
      std::vector<std::jthread> threads;
      for (const int replica : {0, 1, 2}) {
        threads.emplace_back([&, replica] {
          std::vector<float> values(10, 1);
          if (replica == 1) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            last = Clock::now();
          }
          came[replica] = network.At({replica, 0, 0})
                              .Sum(StageOp(Op::REDUCE, 0), Over::kAllMembers, holders, values);
          returned[replica] = Clock::now();
        });
      }
    }
    for (const int replica : {0, 1, 2}) {
      CHECK(came[replica] >= last);
      CHECK(came[replica] <= returned[replica]);
    }
  }

  TEST_CASE("wire transport: holders that reduce in another order are told apart") {
    ProcessNetwork network(1, 2, 1, {});
    std::string failures[2];
    {
      std::vector<std::jthread> threads;
      for (const int replica : {0, 1}) {
        threads.emplace_back([&, replica] {
          std::vector<float> values(4);
          const int holders[] = {0};
          failures[replica] = Failure([&] {
            network.At({replica, 0, 0})
                .Sum(StageOp(Op::REDUCE, replica), Over::kAllMembers, holders, values);
          });
          network.At({replica, 0, 0}).Abort();
        });
      }
    }
    const bool first = failures[0] != "stopped because another rank failed";
    CHECK(failures[first ? 0 : 1] ==
          "the holders of a stage must reduce in one order, but replica " +
              std::string(first ? "0 rank 0 is at REDUCE s0 and replica 1 rank 0 at REDUCE s1"
                                : "1 rank 0 is at REDUCE s1 and replica 0 rank 0 at REDUCE s0") +
              "; verify the plan");
  }

  TEST_CASE_TEMPLATE("wire transport: sums of any size and number of parts", Network, ThreadNetwork,
                     ProcessNetwork) {
    // Numbers whose sum depends on the order, in sizes with and without a share for everybody.
    for (const int replicas : {2, 3, 5}) {
      for (const size_t size : {size_t{0}, size_t{1}, size_t{3}, size_t{1025}, size_t{5000}}) {
        CAPTURES(replicas, size);
        std::vector<std::vector<float>> values;
        std::vector<float> expected(size);
        uint32_t state = 12345;
        for (int r = 0; r < replicas; ++r) {
          auto& part = values.emplace_back();
          for (size_t i = 0; i < size; ++i) {
            state = state * 1664525u + 1013904223u;
            part.push_back(std::ldexp(static_cast<float>(state >> 8), -static_cast<int>(i % 40)));
            expected[i] = r == 0 ? part[i] : expected[i] + part[i];
          }
        }
        Network network(1, replicas, 1, {});
        {
          std::vector<std::jthread> threads;
          for (int r = 0; r < replicas; ++r) {
            threads.emplace_back([&, r] {
              const int holders[] = {0};
              network.At({r, 0, 0}).Sum(StageOp(Op::REDUCE, 0), Over::kAllMembers, holders,
                                        values[static_cast<size_t>(r)]);
            });
          }
        }
        for (const std::vector<float>& sum : values) CHECK(SameBits(sum, expected));
      }
    }
  }
}

}  // namespace
}  // namespace contraflow::wire_transport_test
