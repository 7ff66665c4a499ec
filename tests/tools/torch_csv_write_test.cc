#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "schedules/recompute/recompute.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"
#include "tests/support/torch_rows.h"
#include "tools/interop/interop.h"

namespace contraflow::torch_csv_write_test {
namespace {

Plan Compiled(const Spec& spec, Level level = Level::kComm) {
  return Compile(spec, {.level = level});
}

Spec Shape(std::string_view schedule, int ranks, int microbatches) {
  return MakeSpec(schedule, ranks, microbatches, UniformCosts(3, 4, 2, 1));
}

std::string Written(const Plan& plan, TorchVersion version = {}) {
  return WriteTorchCsv(plan, {.messages = true, .version = version});
}

std::string WhyNot(const Plan& plan, const TorchCsvOptions& options) {
  return Failure([&] { WriteTorchCsv(plan, options); });
}

/// The messages and chunks of a program as cells, in its order.
std::vector<std::string> Expected(const Program& program) {
  std::vector<std::string> cells;
  const auto name = [](int stage, std::string_view type, int microbatch) {
    return std::to_string(stage) + std::string(type) + std::to_string(microbatch);
  };
  const std::map<Op, std::string> types = {{Op::F, "F"}, {Op::B, "I"}, {Op::W, "W"}, {Op::BW, "B"}};
  for (const Instruction& i : program) {
    if (IsMessage(i.op)) cells.push_back(name(i.stage, Name(i.op), i.microbatch));
    if (types.contains(i.op)) cells.push_back(name(i.stage, types.at(i.op), i.microbatch));
    if (i.op == Op::FB) {
      cells.push_back("(" + name(i.stage, "F", i.microbatch) + ";" +
                      name(i.back_stage, "B", i.back_microbatch) + ")OVERLAP_F_B");
    }
  }
  return cells;
}

bool IsExtra(const std::string& cell) {
  for (const char* word : {"SHARD", "WAIT_", "REDUCE_GRAD"}) {
    if (Contains(cell, word)) return true;
  }
  return false;
}

/// Fields that a release of PyTorch wants in addition to the messages.
void CheckExtras(const std::vector<std::string>& row) {
  const auto at = [&](const std::string& cell) {
    CHECK(std::ranges::count(row, cell) == 1);
    return std::ranges::find(row, cell);
  };
  for (const std::string& cell : row) {
    const size_t digits = cell.find_first_not_of("0123456789");
    const std::string stage = cell.substr(0, digits), type = cell.substr(digits);
    if (type.starts_with("SEND_")) {
      CHECK(at(cell) < at(stage + "WAIT_" + type));
    } else if (type.starts_with("F") || type.starts_with("B") || type.starts_with("W0")) {
      CHECK(at(stage + "UNSHARD") < at(cell));
      CHECK(at(cell) < at(stage + "REDUCE_GRAD"));
      CHECK(at(stage + "REDUCE_GRAD") + 1 == at(stage + "WAIT_REDUCE_GRAD"));
      CHECK(at(stage + "REDUCE_GRAD") + 2 == at(stage + "RESHARD"));
    }
  }
}

TEST_SUITE("unit") {
  TEST_CASE("torch csv: with messages, as each release wants it") {
    const Plan plan = Compiled(Shape("1f1b", 2, 2));
    CHECK(Written(plan) ==
          "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0WAIT_SEND_F0,0RECV_B1,0B1,"
          "0WAIT_SEND_F1,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0RESHARD\r\n"
          "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,"
          "1RESHARD,1SEND_B1,1WAIT_SEND_B0,1WAIT_SEND_B1\r\n");
    CHECK(Written(plan, {2, 14}) ==
          "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD\r\n"
          "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1REDUCE_GRAD,1RESHARD,1SEND_B1\r\n");
    // The releases that brought a cell have it, those just before have not.
    CHECK(Written(plan, {2, 10}) == Written(plan, {2, 14}));
    CHECK(Written(plan, {2, 15}) == Written(plan));
    CHECK(Written(plan, {2, 6}) == Written(plan, {2, 9}));
    CHECK(WhyNot(plan, {.messages = true, .version = {2, 5}}).starts_with("`torch` 2.5"));
    CHECK(Written(plan, {2, 9}) ==
          "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0RESHARD\r\n"
          "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1RESHARD,1SEND_B1\r\n");
  }

  TEST_CASE("torch csv: messages stand in the plan's order, and every send is waited for once") {
    int plans = 0;
    for (const Schedule* schedule : Schedules()) {
      for (const int ranks : {1, 2, 3, 4}) {
        for (const int copies : {1, 2}) {
          Spec spec = Shape(schedule->name, ranks, 2 * ranks + 2);
          spec.data_parallel = copies;
          spec.search = {.placement = Placement::kSingle, .budget = 5'000'000};
          if (!schedule->reject(spec).empty()) continue;
          const Plan plan = Compiled(spec);
          if (plan.routes.size() > 1) continue;
          CAPTURES(schedule->name, ranks);
          const auto rows = SplitTorchCsv(Written(plan));
          REQUIRE(rows.size() == plan.programs.size());
          for (size_t r = 0; r < rows.size(); ++r) {
            std::vector<std::string> cells = rows[r];
            std::erase_if(cells, IsExtra);
            CHECK(cells == Expected(plan.programs[r]));
            CheckExtras(rows[r]);
          }
          ++plans;
        }
      }
    }
    CHECK(plans > 60);
  }

  TEST_CASE("torch csv: cells that a release has not") {
    const Plan overlapped = Compiled(Shape("dualpipe-v", 2, 4));
    for (const bool messages : {false, true}) {
      CHECK(WhyNot(overlapped, {messages, {2, 8}}) ==
            "`torch` 2.8: the plan overlaps forwards with backwards (FB), cells OVERLAP_F_B, which "
            "need torch 2.9 or later");
      CHECK(WhyNot(overlapped, {messages, {2, 9}}) == "accepted");
      CHECK(WhyNot(Compiled(Shape("1f1b", 2, 4)), {messages, {2, 5}}) ==
            "`torch` 2.5: its pipelining does not run schedules from a file; that needs torch 2.6 "
            "or later");
    }
  }

  TEST_CASE("torch csv: versions") {
    CHECK(ParseTorchVersion("2.9") == TorchVersion{2, 9});
    CHECK(ParseTorchVersion("2.15.0+cu132") == TorchVersion{2, 15});
    CHECK(ParseTorchVersion("3.0a0") == TorchVersion{3, 0});
    for (const char* text :
         {"", "2", "2.", ".9", "2,9", "v2.9", "2.-9", "-2.9", "2.9x", "2.99999999999"}) {
      CHECK_THROWS_WITH_AS(ParseTorchVersion(text),
                           ("`torch`: must be a version of PyTorch, such as 2.9 or 2.15.0, is \"" +
                            std::string(text) + "\"")
                               .c_str(),
                           Error);
    }
  }

  TEST_CASE("torch csv: messages that only a group makes sound") {
    const std::string head = "rank\n F s0 m0\n SEND_F s0 m0 to=1\n F s0 m1\n";
    const std::string middle =
        " BW s0 m0\n RECV_B s0 m1 from=1\n BW s0 m1\n STEP s0\n"
        "rank\n RECV_F s1 m0 from=0\n F s1 m0\n BW s1 m0\n";
    const std::string tail = " F s1 m1\n BW s1 m1\n SEND_B s1 m1 to=0\n STEP s1\n";
    const auto plan = [&](const std::string& key) {
      return PlanFromText(head + " SEND_F s0 m1 to=1" + key + "\n RECV_B s0 m0 from=1" + key +
                          "\n" + middle + " SEND_B s1 m0 to=0" + key + "\n RECV_F s1 m1 from=0" +
                          key + "\n" + tail);
    };
    CHECK(FindingsText(plan(" group=0")) == "");
    const std::string why = WhyNot(plan(" group=0"), {.messages = true});
    CHECK(why.starts_with(
        "the plan posts messages in groups, which PyTorch's CSV cannot say, and one by one they "
        "are not sound: rank 0, instruction 3: "));
    CHECK(why.ends_with("; give `form` compute, from which PyTorch makes its own messages"));
    CHECK(WhyNot(plan(" group=0"), {}) == "accepted");
    // Groups of one are no groups.
    Plan sound = Compiled(Shape("1f1b", 2, 4));
    const std::string csv = Written(sound);
    for (Program& program : sound.programs) {
      int group = 0;
      for (Instruction& i : program) {
        if (IsMessage(i.op)) i.group = group++;
      }
    }
    CHECK(Written(sound) == csv);
  }

  TEST_CASE(
      "torchtitan: two stages of one rank are a loop; no character of a name ends its string") {
    const Plan loop = GeneratePlan(Shape("interleaved-1f1b", 1, 4));
    CHECK(Contains(WriteTorchtitan(loop, "run.csv", "5", "flags"), "Interleaved1F1B\n"));
    const std::string python = WriteTorchtitan(loop, "a\x7f\"\n.csv", "5", "python");
    CHECK(Contains(python, "= \"a\\u007f\\\"\\u000a.csv\"\n"));
  }

  TEST_CASE("torchtitan: checkpoints all where every stage is recomputed whole, and else nothing") {
    const Plan order = GeneratePlan(Shape("1f1b", 2, 2));
    const auto full = [&](const std::vector<RecomputedStage>& stages) {
      const Plan plan = RecomputeStages(order, stages);
      const bool python = Contains(WriteTorchtitan(plan, "run.csv", "5", "python"), "FullAC");
      const bool flags = WriteTorchtitan(plan, "run.csv", "5", "flags")
                             .ends_with("\nactivation-checkpoint:full\n");
      const bool toml = WriteTorchtitan(plan, "run.csv", "5", "toml")
                            .ends_with("[activation_checkpoint]\nmode = \"full\"\n");
      CHECK(python == flags);
      CHECK(python == toml);
      return python;
    };
    const RecomputeExtent attention(RecomputePart::kAttention, 0), layer(RecomputePart::kFull, 1);
    CHECK(full({{0, {}}, {1, {}}}));
    CHECK_FALSE(full({}));
    CHECK_FALSE(full({{0, {}}}));
    CHECK_FALSE(full({{1, {}}}));
    CHECK_FALSE(full({{0, attention}, {1, attention}}));
    CHECK_FALSE(full({{0, {}}, {1, attention}}));
    CHECK_FALSE(full({{0, layer}, {1, {}}}));
  }

  TEST_CASE("torch csv: what it cannot say of a plan") {
    CHECK(WhyNot(Compiled(Shape("1f1b", 2, 4), Level::kCompute), {.messages = true}) ==
          "the plan has no messages, it is of level compute; compile it with `level` comm, or give "
          "`form` compute, from which PyTorch makes its own");
    Spec spec = Shape("1f1b", 4, 8);
    CHECK(TorchNotes(Compiled(spec)).empty());
    const std::string plain = WriteTorchCsv(Compiled(spec));
    spec.recompute = ParseRecompute("0,2");
    CHECK(TorchNotes(Compiled(spec)) ==
          std::vector<std::string>{
              "checkpoint stages 0,2: the plan recomputes them (R), for which PyTorch's CSV has no "
              "cell; wrap their modules with torch.utils.checkpoint"});
    CHECK(WriteTorchCsv(Compiled(spec)) == plain);
    const RecomputeExtent attention(RecomputePart::kAttention, 0);
    const Plan part = RecomputeStages(GeneratePlan(Shape("1f1b", 4, 8)), {{1, attention}, {2, {}}});
    REQUIRE(TorchNotes(part).size() == 2);
    CHECK(TorchNotes(part)[1] ==
          "of stage 1 wrap " + ToString(attention) + " alone: the plan recomputes that part");
    spec.recompute = {};
    spec.offload = ParseOffload("1");
    spec.costs.host = HostCost{.latency = 1};
    CHECK(TorchNotes(Compiled(spec)) ==
          std::vector<std::string>{
              "offload stage 1: the plan moves their activations to the host (OFFLOAD), for which "
              "PyTorch's CSV has no cell; their modules must do so themselves"});
  }
}

}  // namespace
}  // namespace contraflow::torch_csv_write_test
