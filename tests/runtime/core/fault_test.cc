// Fails the n-th call of a backend or transport, for every n, on every rank of a small plan: the
// run always ends, and the error is the one that was injected, at its instruction.

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>

#include "compiler/plan/error.h"
#include "runtime/launch/threaded_run.h"
#include "tests/runtime/core/faulty_transport.h"
#include "tests/support/failure.h"
#include "tests/support/run_support.h"

namespace contraflow::fault_test {
namespace {

enum class Kind { kError, kInternal, kMemory, kForeign };

/// Throws at its n-th call, counting from 0.
struct Fuse {
  int n = 0;
  Kind kind = Kind::kError;
  int calls = 0;

  bool blown() const { return calls > n; }
  void Call() {
    if (calls++ != n) return;
    switch (kind) {
      case Kind::kError:
        throw Error("injected");
      case Kind::kInternal:
        throw InternalError("injected bug");
      case Kind::kMemory:
        throw std::bad_alloc();
      case Kind::kForeign:
        throw std::runtime_error("injected by a library");
    }
  }
};

class FaultyBackend : public Backend {
 public:
  FaultyBackend(Backend* inner, Fuse* fuse) : inner_(*inner), fuse_(*fuse) {}

  void BeginStep(int step) override { fuse_.Call(), inner_.BeginStep(step); }
  void Compute(const Instruction& i) override { fuse_.Call(), inner_.Compute(i); }
  std::span<std::byte> Outgoing(const Instruction& i) override {
    return fuse_.Call(), inner_.Outgoing(i);
  }
  void Sent(const Instruction& i) override { fuse_.Call(), inner_.Sent(i); }
  std::span<std::byte> Incoming(const Instruction& i) override {
    return fuse_.Call(), inner_.Incoming(i);
  }
  std::span<float> Gradients(int stage) override { return fuse_.Call(), inner_.Gradients(stage); }
  std::span<float> ExpertGradients(int stage) override {
    return fuse_.Call(), inner_.ExpertGradients(stage);
  }
  void OptimizerStep(int stage) override { fuse_.Call(), inner_.OptimizerStep(stage); }

 private:
  Backend& inner_;
  Fuse& fuse_;
};

/// Returns the error of the run with the n-th call of one rank's backend or transport failing; ""
/// once there are fewer calls than that.
std::string RunWithFault(const Plan& plan, size_t victim, bool in_backend, bool strict, Fuse fuse) {
  // A rank that hangs would end with a message about progress instead of the injected one.
  FakeRun run(plan, {.strict = strict, .timeout = std::chrono::seconds(120)});
  Worker& worker = run.workers[victim];
  FaultyBackend backend(worker.backend, &fuse);
  CallFault fault{.n = fuse.n};
  FaultyTransport transport(worker.transport, &fault, {});
  if (in_backend) {
    worker.backend = &backend;
  } else {
    worker.transport = &transport;
    run.backends[victim].transport = &transport;
  }
  std::string message;
  const Clock::time_point start = Clock::now();
  try {
    run.Step(plan);
  } catch (const InternalError& error) {
    message = std::string("bug: ") + error.what();
  } catch (const Error& error) {
    message = error.what();
  }
  CHECK((in_backend ? fuse.blown() : fault.met()) == !message.empty());
  // The others are woken, and do not wait until they give up by themselves.
  CHECK(Clock::now() - start < std::chrono::seconds(60));
  return message;
}

/// Every call of every device of a plan with two ranks in two replicas or of two members.
void FailEveryCall(const Plan& plan, const std::string& group, int least_calls) {
  for (size_t victim = 0; victim < 4; ++victim) {
    const std::string place =
        group + " " + std::to_string(victim / 2) + ", rank " + std::to_string(victim % 2) + ", ";
    for (const bool in_backend : {true, false}) {
      for (const bool strict : {true, false}) {
        int n = 0;
        for (;; ++n) {
          CAPTURE(victim);
          CAPTURE(in_backend);
          CAPTURE(strict);
          CAPTURE(n);
          const std::string message = RunWithFault(plan, victim, in_backend, strict, {.n = n});
          if (message.empty()) break;
          CHECK(message.starts_with(place));
          CHECK(message.ends_with(": injected"));
          const bool named = Contains(message, "instruction ");
          CHECK(named != Contains(message, "start of step"));
          if (!in_backend) CHECK(named);
        }
        CHECK(n > least_calls);
      }
    }
  }
}

TEST_SUITE("unit") {
  TEST_CASE("fault: every call of every rank strict or not") {
    FailEveryCall(TwoRankPlan(2), "replica", 8);
  }

  TEST_CASE("fault: every call of every member of expert groups") {
    const Model model = GroupModel();
    FailEveryCall(PlanFor(model, "1f1b", 2, 2, 2, Level::kComponent, 1), "member", 12);
    FailEveryCall(PlanFor(model, "zb-1p", 2, 2, 2, Level::kBuffer, 2), "member", 12);
  }

  TEST_CASE("fault: an exchange that fails names the member and the instruction") {
    const Plan plan = PlanFor(GroupModel(), "1f1b", 2, 2, 2, Level::kComponent, 1);
    const Program& program = plan.programs[0];
    const auto exchange = static_cast<size_t>(
        std::ranges::find_if(program, [](const Instruction& i) { return i.op == Op::DISPATCH_F; }) -
        program.begin());
    // The transport is called before only to poll.
    for (size_t i = 0; i < exchange; ++i) REQUIRE(program[i].op == Op::ATTN_F);
    CHECK(RunWithFault(plan, 2, false, true, {.n = static_cast<int>(exchange) + 1}) ==
          "member 1, rank 0, instruction " + std::to_string(exchange) + " (" +
              ToString(program[exchange]) + "): injected");
  }

  TEST_CASE("fault: the first instructions and the start of a step are named") {
    const Plan plan = TwoRankPlan();
    const auto message = [&](int n) { return RunWithFault(plan, 0, true, false, {.n = n}); };
    CHECK(message(0) == "rank 0, start of step: injected");
    CHECK(message(1) == "rank 0, instruction 0 (F s0 m0): injected");
    CHECK(message(2) == "rank 0, instruction 1 (SEND_F s0 m0 to=1): injected");
  }

  TEST_CASE("fault: whatever is thrown keeps its audience") {
    const Plan plan = TwoRankPlan();
    const auto message = [&](Kind kind) {
      return RunWithFault(plan, 1, true, false, {.n = 2, .kind = kind});
    };
    const std::string place = "rank 1, instruction 1 (F s1 m0): ";
    CHECK(message(Kind::kError) == place + "injected");
    CHECK(message(Kind::kInternal) == "bug: " + place + "injected bug");
    CHECK(message(Kind::kMemory) ==
          place + "out of memory; use a smaller model, or fewer ranks or micro-batches");
    CHECK(message(Kind::kForeign) == "bug: " + place + "internal error: injected by a library");
  }

  TEST_CASE("fault: a loss or a gradient that is not finite ends the step that made it") {
    const Plan plan = TwoRankPlan();
    const Model model = SmallModel(2);
    const Dataset dataset = SmallDataset();
    const std::string remedy =
        " is not finite; lower the model's learning_rate, or resume from a checkpoint";
    for (const float value :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      ThreadedRun run(plan, model, dataset, 1, {}, false);
      run.Step(1);
      run.At({.rank = 1}).StageAt(1).parameters().back() = value;
      CHECK(Failure([&] { run.Step(2); }) ==
            "rank 1, instruction 1 (F s1 m0): step 2: the loss of micro-batch 0" + remedy);

      ThreadedRun other(plan, model, dataset, 1, {}, false);
      HostBackend& backend = other.At({.rank = 0});
      const std::vector<float> before(backend.StageAt(0).parameters().begin(),
                                      backend.StageAt(0).parameters().end());
      backend.BeginStep(3);
      backend.Gradients(0).back() = value;
      CHECK(Failure([&] { backend.OptimizerStep(0); }) ==
            "step 3: a gradient of \"layer 0 router\" in stage 0" + remedy);
      CHECK(std::ranges::equal(before, backend.StageAt(0).parameters()));
    }
  }
}

}  // namespace
}  // namespace contraflow::fault_test
