// A transport that fails, delays or drops its n-th call, for every n of small plans, on every rank,
// between threads and between processes: every run ends, and says what happened first and where.
// A wire that fails in the middle of a call is one more way to fail.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/core/executor.h"
#include "runtime/host/run.h"
#include "runtime/transport/shm_wire.h"
#include "runtime/transport/wire_transport.h"
#include "tests/runtime/core/faulty_transport.h"
#include "tests/runtime/launch/watched_job.h"
#include "tests/support/failure.h"
#include "tests/support/run_support.h"

namespace contraflow::transport_fault_test {
namespace {

using std::chrono::milliseconds;

constexpr int kNever = 1 << 30;

/// How long a run may stand still before it is given up: no run takes the longer one, however busy
/// the machine is; where nothing else ends it the shorter one does.
milliseconds TimeoutFor(const CallFault& fault) {
  return milliseconds(fault.harm == Harm::kDrop && fault.n < kNever ? 300 : 60'000);
}

enum class Kind { kThreads, kProcesses };
enum class At { kTransport, kWire };

/// One run with a fault on one device.
struct Case {
  const Plan& plan;
  Kind kind = Kind::kThreads;
  bool strict = false;
  size_t victim = 0;
  At at = At::kTransport;
};

/// How it ended.
struct Outcome {
  bool met = false;                  // the fault was
  CallKind kind = CallKind::kBegin;  // of the call that met it
  std::string message;               // of the run; "" if it succeeded
  int calls = 0;                     // of the victim
  std::vector<std::vector<float>> sums;
};

/// The gradients of all devices after a run.
template <typename Backends>
std::vector<std::vector<float>> SumsOf(Backends& backends) {
  std::vector<std::vector<float>> sums;
  for (FakeBackend& backend : backends) {
    for (const auto& [stage, values] : backend.gradients) sums.push_back(values);
    for (const auto& [stage, values] : backend.experts) sums.push_back(values);
  }
  return sums;
}

Outcome RunThreads(const Case& one, CallFault fault) {
  Outcome outcome;
  FakeRun run(one.plan, {.strict = one.strict, .timeout = TimeoutFor(fault)});
  Transport& inner = *run.workers[one.victim].transport;
  FaultyTransport transport(&inner, &fault, [&] {
    // Devices that wait for this one notice; if nobody does it ends as a wait of its own would.
    const Clock::time_point end = Clock::now() + 2 * TimeoutFor(fault);
    for (; Clock::now() < end; inner.Poll()) std::this_thread::sleep_for(milliseconds(1));
    throw Error("nobody waits");
  });
  run.workers[one.victim].transport = &transport;
  run.backends[one.victim].transport = &transport;
  try {
    run.Step(one.plan);
  } catch (const Error& error) {
    outcome.message = error.what();
  }
  outcome.met = fault.met();
  outcome.kind = fault.kind;
  outcome.calls = fault.calls;
  outcome.sums = SumsOf(run.backends);
  return outcome;
}

Outcome RunProcesses(const Case& one, CallFault fault) {
  Outcome outcome;
  const RankOrder order(RankOrder::kDefault, one.plan);
  const int processes = order.processes();
  // All this lives, like in a process, until the job has been stopped.
  std::vector<FakeBackend> backends;
  for (const Device device : AllDevices(one.plan)) {
    const auto w = static_cast<float>(backends.size());
    FakeBackend& backend = backends.emplace_back(one.plan, device, nullptr);
    for (int s = 0; s < one.plan.stages; ++s) {
      backend.gradients[s] = {w};
      if (one.plan.expert_parallel > 1) backend.experts[s] = {w, 1};
    }
  }
  const int victim = order.ProcessOf(AllDevices(one.plan)[one.victim]);
  Control::Options options = Unhurried();
  options.timeout = TimeoutFor(fault);
  options.name = [&](int process) { return NameOf(one.plan, order.DeviceOf(process)); };
  options.describe = [&](const Progress::Snapshot& at) {
    return "instruction " + std::to_string(at.index) +
           (at.process < 0 ? "" : ", waits for " + options.name(at.process));
  };
  WatchedJob job(processes, options);
  const SharedMemory memory(processes, 4096);
  std::vector<std::unique_ptr<ShmWire>> wires;
  for (int p = 0; p < processes; ++p) {
    wires.push_back(std::make_unique<ShmWire>(memory, p, options.name));
  }
  job.Run([&](int process, Control& control, Progress& progress) {
    const Device device = order.DeviceOf(process);
    FakeBackend& backend = backends[DeviceNumber(one.plan, device)];
    ShmWire& wire = *wires[static_cast<size_t>(process)];
    FaultyWire faulty_wire(&wire, &fault);
    const bool in_wire = process == victim && one.at == At::kWire;
    WireTransport inner(one.plan, order, in_wire ? static_cast<Wire&>(faulty_wire) : wire,
                        &progress, one.strict);
    FaultyTransport faulty(&inner, &fault, [&] {
      for (;;) wire.Pause();
    });
    const bool in_transport = process == victim && one.at == At::kTransport;
    Transport& transport = in_transport ? static_cast<Transport&>(faulty) : inner;
    backend.transport = &transport;
    Executor executor(one.plan, device.rank, backend, transport, &progress);
    control.OnStop([&] { wire.Abort(); });
    control.Barrier();
    executor.Run(1, Clock::now());
    control.Barrier();
    control.Finish();
  });
  // All have ended or none.
  for (int p = 0; p < processes; ++p) CHECK((job.end(p).code > 0) == (job.end(0).code > 0));
  if (job.end(0).code > 0) outcome.message = job.Report();
  outcome.met = fault.met();
  outcome.kind = fault.kind;
  outcome.calls = fault.calls;
  outcome.sums = SumsOf(backends);
  return outcome;
}

Outcome Run(const Case& one, const CallFault& fault) {
  return one.kind == Kind::kThreads ? RunThreads(one, fault) : RunProcesses(one, fault);
}

/// Runs with the fault in every call of every device, strict or not, `together` runs at a time;
/// `check` is told the device and how each run ended whose fault was met. Returns their number.
template <typename Check>
int ForEveryCall(const Plan& plan, Kind kind, At at, Harm harm, size_t together,
                 const Check& check) {
  struct Trial {
    Case one;
    CallFault fault;
    Outcome outcome;
  };
  std::vector<Trial> trials;
  for (const bool strict : {false, true}) {
    for (size_t victim = 0; victim < DeviceCount(plan); ++victim) {
      const Case one = {plan, kind, strict, victim, at};
      const int calls = Run(one, {.harm = harm, .n = kNever}).calls;
      CHECK(calls >= 4);
      for (int n = 0; n < calls; ++n) trials.push_back({one, {.harm = harm, .n = n}, {}});
    }
  }
  std::atomic<size_t> next = 0;
  {
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < together; ++t) {
      threads.emplace_back([&] {
        for (size_t i = next++; i < trials.size(); i = next++) {
          trials[i].outcome = Run(trials[i].one, trials[i].fault);
        }
      });
    }
  }
  int met = 0;
  for (const auto& [one, fault, outcome] : trials) {
    CAPTURE(one.strict);
    CAPTURE(one.victim);
    CAPTURE(fault.n);
    // How often a transfer is asked for is a matter of time.
    if (!outcome.met) continue;
    ++met;
    check(one.victim, outcome);
  }
  return met;
}

/// Two ranks, and two members of an expert group: messages; exchanges and sums.
std::vector<Plan> SmallPlans() {
  return {TwoRankPlan(), PlanFor(GroupModel(), "1f1b", 1, 1, 2, Level::kComponent, 1)};
}

/// Place of the fault: in the transport of threads, in that of processes, in their wire.
struct Place {
  const char* name;
  Kind kind;
  At at;
};
constexpr Place kPlaces[] = {{"threads", Kind::kThreads, At::kTransport},
                             {"processes", Kind::kProcesses, At::kTransport},
                             {"wire", Kind::kProcesses, At::kWire}};

TEST_SUITE("unit") {
  TEST_CASE("transport fault: a call that fails ends the run and is named") {
    for (const Plan& plan : SmallPlans()) {
      const std::vector<Device> devices = AllDevices(plan);
      for (const Place& place : kPlaces) {
        CAPTURE(std::string(place.name));
        const int met = ForEveryCall(
            plan, place.kind, place.at, Harm::kFail, 4, [&](size_t victim, const Outcome& outcome) {
              const std::string line = FirstLine(outcome.message);
              CAPTURE(line);
              CHECK(Contains(line,
                             "rank " + std::to_string(devices[victim].rank) + ", instruction "));
              if (plan.expert_parallel > 1)
                CHECK(Contains(line, "member " + std::to_string(victim)));
              CHECK(line.ends_with(": injected"));
            });
        CHECK(met > 20);
      }
    }
  }

  TEST_CASE("transport fault: a call that is late changes nothing") {
    for (const Plan& plan : SmallPlans()) {
      const std::vector<std::vector<float>> expected =
          Run({plan}, {.harm = Harm::kFail, .n = kNever}).sums;
      for (const Place& place : kPlaces) {
        CAPTURE(std::string(place.name));
        const int met = ForEveryCall(plan, place.kind, place.at, Harm::kDelay, 4,
                                     [&](size_t, const Outcome& outcome) {
                                       CHECK(outcome.message == "");
                                       CHECK(outcome.sums == expected);
                                     });
        CHECK(met > 20);
      }
    }
  }

  TEST_CASE("transport fault: a call that is lost ends the run after the timeout") {
    for (const Plan& plan : SmallPlans()) {
      const std::vector<std::vector<float>> expected =
          Run({plan}, {.harm = Harm::kFail, .n = kNever}).sums;
      for (const Place& place : kPlaces) {
        CAPTURE(std::string(place.name));
        int awaited = 0, told = 0;
        const int met = ForEveryCall(
            plan, place.kind, place.at, Harm::kDrop, 32, [&](size_t, const Outcome& outcome) {
              const std::string& message = outcome.message;
              CAPTURE(message);
              if (message.empty()) {
                // The last look at what was sent before is one that nobody misses.
                CHECK(outcome.kind == CallKind::kLook);
                CHECK(outcome.sums == expected);
                return;
              }
              CHECK(Contains(message, "instruction "));
              if (place.kind == Kind::kThreads && message.ends_with(": nobody waits")) return;
              const bool in_vain = Contains(message, "no rank has made progress for 0.3 s");
              if (outcome.kind == CallKind::kBegin) {
                // If a message is lost the next one may be taken for it.
                CHECK((in_vain || Contains(message, " got the wrong message: ") ||
                       Contains(message, "must exchange in one order") ||
                       Contains(message, "must reduce in one order")));
              } else {
                CHECK(in_vain);
              }
              if (!in_vain) return;
              for (const Device device : AllDevices(plan)) {
                CHECK(Contains(message, NameOf(plan, device)));
              }
              if (outcome.kind == CallKind::kAwait) ++awaited;
              if (Contains(message, "waits")) ++told;
            });
        CHECK(met > 10);
        // A wire has calls that begin and calls that look, and none that waits.
        CHECK((awaited > 0) == (place.at == At::kTransport));
        // A dropped call may hang in the harm itself; elsewhere it is known who waits for whom.
        CHECK(told > 0);
      }
    }
  }
}

}  // namespace
}  // namespace contraflow::transport_fault_test
