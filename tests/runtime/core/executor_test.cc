#include "runtime/core/executor.h"

#include <doctest/doctest.h>

#include <string>

#include "tests/support/failure.h"
#include "tests/support/run_support.h"
#include "tests/support/support.h"

namespace contraflow::executor_test {
namespace {

using Milliseconds = std::chrono::milliseconds;

TEST_SUITE("unit") {
  TEST_CASE("executor: walks the program once each and in order") {
    const Plan plan = TwoRankPlan();
    for (const bool strict : {false, true}) {
      FakeRun run(plan, {.strict = strict});
      Launch launch(plan, run.workers);
      for (int step = 1; step <= 3; ++step) {
        for (FakeBackend& backend : run.backends) backend.log.clear();
        launch.Step(step);
        for (size_t r = 0; r < 2; ++r) {
          const std::vector<Span>& spans = launch.spans(r);
          std::vector<std::string> expected = {"begin " + std::to_string(step)};
          for (const Instruction& i : plan.programs[r]) {
            expected.push_back(i.op == Op::STEP ? "step " + std::to_string(i.stage) : ToString(i));
          }
          CHECK(run.backends[r].log == expected);
          CHECK(run.backends[r].values() == 0);
          REQUIRE(spans.size() == plan.programs[r].size());
          Time last = 0;
          for (size_t i = 0; i < spans.size(); ++i) {
            CHECK(spans[i].start <= spans[i].end);
            if (WorkOf(plan.programs[r][i].op) != Work::kCompute) continue;
            CHECK(spans[i].start >= last);  // One compute instruction after the other.
            last = spans[i].end;
          }
        }
      }
    }
  }

  TEST_CASE("executor: what a rank needs has arrived when it computes says the timeline") {
    const Plan plan = TwoRankPlan();
    FakeRun run(plan, {});
    Launch launch(plan, run.workers);
    launch.Step(1);
    const std::vector<Span>&sender = launch.spans(0), &receiver = launch.spans(1);
    // RECV_F s1 m0, F s1 m0 on rank 1; F s0 m0, SEND_F s0 m0 on rank 0.
    CHECK(sender[0].end <= sender[1].start);
    CHECK(sender[1].start <= receiver[0].end);
    CHECK(receiver[0].end <= receiver[1].start);
  }

  TEST_CASE("executor: reduces over all copies and replicas then steps") {
    Plan plan = TwoRankPlan(2);
    FakeRun run(plan, {});
    run.Step(plan);
    // Rank 0 of the replicas began with gradients 0 and 2, rank 1 with 1 and 3.
    CHECK(run.backends[0].gradients[0] == std::vector<float>{2});
    CHECK(run.backends[2].gradients[0] == std::vector<float>{2});
    CHECK(run.backends[1].gradients[1] == std::vector<float>{4});
    CHECK(run.backends[3].gradients[1] == std::vector<float>{4});
    CHECK(run.backends[0].gradients[1] == std::vector<float>{0});
    const std::vector<std::string>& log = run.backends[0].log;
    CHECK(log[log.size() - 2] == "gradients 0");
    CHECK(log[log.size() - 1] == "step 0");
  }

  TEST_CASE("executor: a receive is posted where it stands and waited for where it is used") {
    // Rank 0 posts the receive of the gradient before it has even begun.
    const Plan plan = PlanFromText(R"(
        rank
         RECV_B s0 m0 from=1
         F s0 m0
         SEND_F s0 m0 to=1
         BW s0 m0
         STEP s0
        rank
         RECV_F s1 m0 from=0
         F s1 m0
         BW s1 m0
         SEND_B s1 m0 to=0
         STEP s1)");
    FakeRun run(plan, {.strict = false, .timeout = Milliseconds(120'000)});
    run.Step(plan);
    CHECK(run.backends[0].values() == 0);

    // With rendezvous in the one order of the program it is a deadlock, and is told as one.
    FakeRun strict(plan, {.strict = true, .timeout = Milliseconds(1500)});
    const std::string failure = Failure([&] { strict.Step(plan); });
    CHECK(Contains(failure,
                   "no rank has made progress for 1.5 s: rank 0 waits at RECV_B s0 m0 from=1 "
                   "for rank 1; rank 1 waits at RECV_F s1 m0 from=0 for rank 0; verify the "
                   "plan"));
    CHECK((failure.starts_with("rank 0, instruction 0 (RECV_B s0 m0 from=1): ") ||
           failure.starts_with("rank 1, instruction 0 (RECV_F s1 m0 from=0): ")));
  }

  TEST_CASE("executor: posts groups together also strictly") {
    const auto plan_with = [](const std::string& group) {
      return PlanFromText("route 0 1 : 0\nroute 1 0 : 1\n rank\n F s0 m0\n SEND_F s0 m0 to=1" +
                          group + "\n RECV_F s1 m1 from=1" + group +
                          "\n F s1 m1\n rank\n F s0 m1\n SEND_F s0 m1 to=0" + group +
                          "\n RECV_F s1 m0 from=0" + group + "\n F s1 m0");
    };
    const Plan grouped = plan_with(" group=0");
    FakeRun run(grouped, {.strict = true, .timeout = Milliseconds(120'000)});
    run.Step(grouped);
    CHECK(run.backends[0].values() + run.backends[1].values() == 0);

    const Plan apart = plan_with("");
    FakeRun stuck(apart, {.strict = true, .timeout = Milliseconds(1500)});
    CHECK(Contains(Failure([&] { stuck.Step(apart); }), "no rank has made progress"));
  }

  TEST_CASE("executor: stages of one rank hand over without a message") {
    const Plan plan = PlanFromText(R"(
        level comm
        route 0 0 0 : 0
        rank
         F s0 m0
         F s1 m0
         F s2 m0
         BW s2 m0
         B s1 m0
         BW s0 m0
         W s1 m0)");
    FakeRun run(plan, {});
    run.Step(plan);
    CHECK(run.backends[0].values() == 0);
  }

  TEST_CASE("executor: walks components in order and waits for what their events name") {
    for (const Level level : {Level::kComponent, Level::kBuffer}) {
      const Plan plan = PlanFor(GroupModel(), "dualpipe", 4, 8, 2, level, 2);
      for (const bool strict : {false, true}) {
        FakeRun run(plan, {.strict = strict, .timeout = Milliseconds(120'000)});
        Launch launch(plan, run.workers);
        launch.Step(1);
        int waited = 0;
        for (size_t w = 0; w < run.workers.size(); ++w) {
          const Program& program = plan.programs[static_cast<size_t>(run.workers[w].device.rank)];
          const std::vector<Span>& spans = launch.spans(w);
          std::vector<std::string> expected = {"begin 1"};
          Time last = 0;
          for (size_t i = 0; i < program.size(); ++i) {
            const std::string stage = std::to_string(program[i].stage);
            if (program[i].op == Op::REDUCE) {
              expected.insert(expected.end(), {"gradients " + stage, "experts " + stage});
            } else {
              expected.push_back(program[i].op == Op::STEP ? "step " + stage
                                                           : ToString(program[i]));
            }
            if (OperandsOf(program[i].op) != Operands::kLayer) continue;
            CHECK(spans[i].start >= last);  // One after the other.
            last = spans[i].end;
            for (int a = 0; a < program[i].after_count; ++a) {
              const auto other = static_cast<size_t>(program[i].after[static_cast<size_t>(a)]);
              CHECK(spans[other].end <= spans[i].start);
              if (OperandsOf(program[other].op) == Operands::kMessage) ++waited;
            }
          }
          CHECK(run.backends[w].log == expected);
          CHECK(run.backends[w].values() == 0);
        }
        CHECK(waited >= 4 * 2 * 8);
      }
    }
  }

  TEST_CASE("executor: sums dense gradients over all members and those of experts over the same") {
    const Plan plan = PlanFor(GroupModel(), "1f1b", 2, 2, 2, Level::kComponent, 1, 2);
    FakeRun run(plan, {});
    run.Step(plan);
    // Device w of replica w / 4, member w / 2 % 2 and rank w % 2 began with w.
    for (size_t w = 0; w < 8; ++w) {
      const int rank = static_cast<int>(w % 2);
      const float dense = rank == 0 ? 0 + 2 + 4 + 6 : 1 + 3 + 5 + 7;
      CHECK(run.backends[w].gradients[rank] == std::vector<float>{dense});
      const float same = static_cast<float>(2 * (w % 4) + 4);
      CHECK(run.backends[w].experts[rank] == std::vector<float>{same, 2});
    }
  }

  TEST_CASE("executor: an unsound program fails and names the instruction") {
    const auto failure = [](const std::string& first, const std::string& second) {
      const Plan plan =
          PlanFromText("level comm\nroute 0 1 : 0\nrank\n" + first + "\nrank\n" + second);
      FakeRun run(plan, {.strict = false, .timeout = Milliseconds(1000)});
      return Failure([&] { run.Step(plan); });
    };
    CHECK(failure("SEND_F s0 m0 to=1", "") ==
          "rank 0, instruction 0 (SEND_F s0 m0 to=1): a value is missing");
    CHECK(failure("F s0 m0", "F s1 m0") == "rank 1, instruction 0 (F s1 m0): a value is missing");
    CHECK(failure("F s0 m0\nSEND_F s0 m0 to=1", "") ==
          "rank 0, instruction 1 (SEND_F s0 m0 to=1): no rank has made progress for 1 s: rank 0 "
          "waits at SEND_F s0 m0 to=1 for rank 1; rank 1 waits for nobody; verify the plan, or "
          "allow more time with `timeout`");
    CHECK(
        failure("F s0 m0\nSEND_F s0 m0 to=0", "") ==
        "rank 0, instruction 1 (SEND_F s0 m0 to=0): there is no other rank 0 to exchange messages "
        "with");
    CHECK(
        failure("F s0 m0\nRECV_B s0 m0 from=1\nRECV_B s0 m0 from=1", "") ==
        "rank 0, instruction 2 (RECV_B s0 m0 from=1): receives what is already on its way to this "
        "rank");
    CHECK(
        failure("F s0 m0\nSEND_F s0 m0 to=1 group=1\nBW s0 m0 group=1", "") ==
        "rank 0, instruction 2 (BW s0 m0 group=1): only SEND and RECV can be posted together as a "
        "group");
  }

  TEST_CASE("executor: only plans with messages and with components where there are buffers") {
    Plan plan = TwoRankPlan();
    plan.level = Level::kCompute;
    CHECK(Failure([&] { CheckExecutable(plan); }) ==
          "a plan of level compute has no messages and cannot be executed; compile it with `level` "
          "comm");
    plan.level = Level::kBuffer;
    CHECK(Failure([&] { CheckExecutable(plan); }) ==
          "this plan places the buffers of stages without components, which cannot be executed; "
          "compile it with \"moe\" costs, or with `level` comm");
    plan.layers = 1;
    CheckExecutable(plan);
    plan.level = Level::kComponent;
    CheckExecutable(plan);
  }
}

}  // namespace
}  // namespace contraflow::executor_test
