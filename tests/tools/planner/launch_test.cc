#include "tools/interop/launch.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "compiler/plan/error.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"
#include "tests/tools/planner/planner_support.h"
#include "tools/cli/layer_layout.h"
#include "tools/interop/interop.h"
#include "tools/planner/planner.h"

namespace contraflow::planner_test {
namespace {

/// Searches like the command with --for and --only.
PlannerResult Found(PlanRequest request, Framework framework,
                    const std::vector<std::string>& only = {}) {
  request.framework = framework;
  request.optimizer = &FindOptimizer(OptimizerOf(framework));
  request.schedules = SchedulesFor(framework, only);
  return FindPlans(request);
}

/// Arguments of a file, by name; those without a value have "".
std::map<std::string, std::string> Arguments(const std::string& text) {
  std::map<std::string, std::string> arguments;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    const std::string value = space == std::string::npos ? "" : line.substr(space + 1);
    CHECK(arguments.emplace(line.substr(0, space), value).second);
  }
  return arguments;
}

std::string TextOf(const PlanRequest& request, const PlannerRow& row, const std::string& name) {
  for (const LaunchFile& file :
       LaunchFiles(request.LaunchOf(row.configuration), row.plan, "best/")) {
    if (file.path == "best/" + name) return file.text;
  }
  FAIL("there is no " << name);
  return "";
}

int Number(const std::map<std::string, std::string>& arguments, const std::string& name,
           int absent) {
  return arguments.contains(name) ? std::stoi(arguments.at(name)) : absent;
}

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("launch: Megatron's arguments are the configuration of the row, and of its plan") {
  std::set<std::string> schedules;
  bool split = false, rounds = false, sharded = false;
  for (const char* fixed :
       {"pp=4", "pp=2,tp=2", "pp=2,ep=4,tp=1", "pp=4,ep=2,tp=1,micro-batch=2"}) {
    CAPTURE(fixed);
    PlanRequest request = SmallMoe(8);
    request.framework = Framework::kMegatron;
    request.fixed = ParseFixed(fixed);
    for (const char* only : {"1f1b", "interleaved-1f1b", "combined-1f1b"}) {
      const bool pairs = std::string(only) == "combined-1f1b";
      if (pairs && !Contains(std::string(fixed), "ep=")) continue;
      const PlannerResult result = Found(request, Framework::kMegatron, {only});
      for (const PlannerRow& row : result.rows) {
        const Configuration& c = row.configuration;
        const auto arguments = Arguments(TextOf(request, row, "megatron.args"));
        CHECK(Number(arguments, "--pipeline-model-parallel-size", 0) == c.pp);
        CHECK(Number(arguments, "--tensor-model-parallel-size", 1) == c.tp);
        CHECK(Number(arguments, "--expert-model-parallel-size", 1) == c.ep);
        CHECK(Number(arguments, "--expert-tensor-parallel-size", 0) == c.etp);
        CHECK(Number(arguments, "--micro-batch-size", 0) == c.micro_batch);
        CHECK(Number(arguments, "--global-batch-size", 0) == request.global_batch);
        CHECK(Number(arguments, "--seq-length", 0) == request.sequence);
        CHECK(Number(arguments, "--num-layers", 0) == 8);
        CHECK(arguments.contains("--sequence-parallel") == (c.tp > 1));
        CHECK(arguments.contains("--use-distributed-optimizer") == (c.zero == 1));
        CHECK(arguments.contains("--overlap-moe-expert-parallel-comm") == pairs);
        CHECK(arguments.contains("--bf16"));
        CHECK(!arguments.contains("--fp8-format"));
        // Megatron takes the batch apart again: whole micro-batches of each replica.
        const int dp = request.gpus / (c.pp * c.tp);
        CHECK(request.global_batch % (dp * c.micro_batch) == 0);
        CHECK(request.global_batch / (dp * c.micro_batch) == row.plan.microbatches);
        const std::string layout = arguments.at("--pipeline-model-parallel-layout");
        CHECK(FlawOf(ParseLayerLayout(layout.substr(1, layout.size() - 2)), c.pp).empty());
        schedules.insert(row.plan.schedule);
        split |= c.tp > 1;
        sharded |= c.zero == 1;
        rounds |= arguments.contains("--microbatch-group-size-per-virtual-pipeline-stage");
      }
    }
  }
  CHECK(schedules == std::set<std::string>{"1f1b", "combined-1f1b", "interleaved-1f1b"});
  CHECK(split);
  CHECK(rounds);
  CHECK(sharded);
}

TEST_CASE("launch: an optimizer becomes the flags of a framework, or is refused") {
  PlanRequest request = SmallDense(8);
  request.fixed = ParseFixed("pp=4,tp=1");
  for (const auto& [optimizer, flags] : std::map<std::string, std::map<std::string, std::string>>{
           {"adam", {}},
           {"adam-bf16", {{"--exp-avg-dtype", "bf16"}, {"--exp-avg-sq-dtype", "bf16"}}},
           {"adam-8bit", {{"--exp-avg-dtype", "fp8"}, {"--exp-avg-sq-dtype", "fp8"}}},
           {"muon", {{"--optimizer", "muon"}}}}) {
    CAPTURE(optimizer);
    const PlannerRow row = Found(request, Framework::kMegatron, {"1f1b"}).rows.at(0);
    request.framework = Framework::kMegatron;
    request.optimizer = &FindOptimizer(optimizer);
    auto arguments = Arguments(TextOf(request, row, "megatron.args"));
    CHECK(arguments.contains("--use-precision-aware-optimizer") ==
          flags.contains("--exp-avg-dtype"));
    for (const char* key : {"--exp-avg-dtype", "--exp-avg-sq-dtype", "--optimizer"}) {
      CHECK(arguments.contains(key) == flags.contains(key));
      if (flags.contains(key)) CHECK(arguments[key] == flags.at(key));
    }
  }
  const auto flaw = [](Framework framework, const char* optimizer, int zero, int cp = 1) {
    return FlawFor({.framework = framework, .zero = zero, .optimizer = optimizer}, {.cp = cp},
                   "1f1b");
  };
  CHECK(flaw(Framework::kMegatron, "adam-bf16", 0) ==
        "it shortens moments only with ZeRO; take `optimizer` adam");
  CHECK(flaw(Framework::kMegatron, "adam-bf16", 1).empty());
  CHECK(flaw(Framework::kMegatron, "adam-all-bf16", 1) ==
        "it keeps parameters in fp32, too; take another `optimizer`");
  CHECK(flaw(Framework::kTorch, "adam", 0) == "train.py has no other optimizer than adam-all-bf16");
  CHECK(flaw(Framework::kTorch, "adam-all-bf16", 0).empty());
  CHECK(flaw(Framework::kTorch, "adam-all-bf16", 0, 2) == "it does not split sequences; fix cp=1");
  CHECK(flaw(Framework::kTorchtitan, "muon", 0) ==
        "its flags have no such optimizer; take `optimizer` adam or adam-all-bf16");
  CHECK(flaw(Framework::kTorchtitan, "adam-all-bf16", 0, 2).empty());
  CHECK(FlawFor({.framework = Framework::kTorchtitan, .tp_overlap = true}, {.tp = 2}, "1f1b") ==
        "it overlaps messages of tp only in compiled models; leave `tp_overlap` out");
}

TEST_CASE("launch: a search for a framework has only plans that its exporter takes") {
  for (const PlanRequest& small : {SmallMoe(8), SmallDense(8)}) {
    for (const auto memory : {int64_t{80'000'000'000}, int64_t{1'500'000'000}}) {
      PlanRequest request = small;
      request.gpu.memory = memory;
      CAPTURE(memory);
      for (const PlannerRow& row : Found(request, Framework::kMegatron).rows) {
        CHECK_NOTHROW(WriteMegatronLayout(row.plan, {}));
        CHECK((row.recompute == "none" || row.recompute == "full"));
      }
      for (const PlannerRow& row : Found(request, Framework::kTorchtitan).rows) {
        CHECK(row.plan.routes.size() == 1);
        CHECK_NOTHROW(WriteTorchtitan(row.plan, WriteTorchCsv(row.plan), {}, "flags"));
        const RecomputedCells cells(row.plan);
        for (int s = 0; s < row.plan.stages; ++s) CHECK(cells.HasStage(s) == cells.any());
        if (request.model.has_experts()) CHECK(row.configuration.ep >= row.configuration.tp);
      }
      for (const PlannerRow& row : Found(request, Framework::kTorch).rows) {
        CHECK(row.configuration.tp == 1);
        CHECK_FALSE(RecomputedCells(row.plan).in_parts());
        CHECK_FALSE(RecomputedCells(row.plan).in_layers());
      }
    }
  }
}

TEST_CASE("launch: Megatron gets more chunks where these are shorter, and the command says so") {
  PlanRequest request = SmallDense(8);
  request.model.layers.resize(32, request.model.layers.front());
  request.fixed = ParseFixed("pp=4,tp=1,micro-batch=4");
  request.budget = 10'000'000'000;
  const PlannerRow row = Found(request, Framework::kMegatron, {"interleaved-1f1b"}).rows.at(0);
  CHECK(row.chunks > 2);
  CHECK(row.plan.stages == row.chunks * 4);
  CHECK(Contains(CompileLine(row, "c", "p"), " --chunks " + std::to_string(row.chunks) + " "));
}

TEST_CASE("launch: torchtitan's flags use all GPUs and have the tokens of the batch") {
  PlanRequest request = SmallMoe(8);
  request.framework = Framework::kTorchtitan;
  request.fixed = ParseFixed("pp=2,ep=2,tp=1,micro-batch=2");
  const PlannerRow row = Found(request, Framework::kTorchtitan, {"1f1b"}).rows.at(0);
  const std::string flags = TextOf(request, row, "torchtitan.args");
  const auto arguments = Arguments(flags);
  const auto number = [&](const std::string& name) { return Number(arguments, "--" + name, 0); };
  CHECK(number("parallelism.pipeline_parallel_degree") == 2);
  CHECK(number("parallelism.tensor_parallel_degree") == 1);
  CHECK(number("parallelism.expert_parallel_degree") == 2);
  CHECK(number("parallelism.data_parallel_shard_degree") == 4);
  CHECK(number("parallelism.data_parallel_replicate_degree") == 1);
  CHECK(number("training.num_tokens_per_microbatch_per_dp_rank") == 2 * 1024);
  CHECK(number("training.num_tokens_per_train_step") == 96 * 1024);
  CHECK(arguments.at("--parallelism.pipeline_parallel_schedule_csv") == "best/run.csv");
  CHECK(flags.ends_with("\nactivation-checkpoint:none\n"));
  const std::string python = TextOf(request, row, "run.py");
  CHECK(Contains(python, "config.training.max_context_length = 1024\n"));
  CHECK(Contains(python, "config.activation_checkpoint = None\n"));
  CHECK(TextOf(request, row, "run.csv") == WriteTorchCsv(row.plan));
}

TEST_CASE("launch: the script for contraflow.torch is short and has no gaps") {
  const std::string script = WriteTrainScript(
      {.framework = Framework::kTorch, .micro_batch = 2, .sequence = 96, .zero = 1});
  CHECK(Contains(script, "SEQUENCE, ROWS, ZERO = 96, 2, 1 "));
  CHECK(!Contains(script, "@"));
  CHECK(std::ranges::count(script, '\n') <= 60);
}

TEST_CASE("launch: --for and --only leave what is in both, or a refusal that names both") {
  using Names = std::vector<std::string>;
  CHECK(SchedulesFor(Framework::kMegatron, {}) ==
        Names{"1f1b", "interleaved-1f1b", "combined-1f1b"});
  CHECK(SchedulesFor(Framework::kMegatron, {"auto"}) == SchedulesFor(Framework::kMegatron, {}));
  CHECK(SchedulesFor(Framework::kMegatron, {"zb-v", "1f1b"}) == Names{"1f1b"});
  CHECK(SchedulesFor(Framework::kTorchtitan, {}) == Names{"auto"});
  CHECK(SchedulesFor(Framework::kTorchtitan, {"dualpipe", "zb-v"}) == Names{"zb-v"});
  CHECK(SchedulesFor(Framework::kTorch, {"dualpipe", "zb-v"}) == Names{"dualpipe", "zb-v"});
  CHECK(Failure([] {
          SchedulesFor(Framework::kMegatron, {"dualpipe", "zb-v"});
        }) ==
        "`only`: `for` megatron runs no dualpipe, zb-v; give one of 1f1b, interleaved-1f1b, "
        "combined-1f1b");
}

TEST_CASE("launch: where a framework runs no configuration, the error says why") {
  const auto why = [](const char* fixed, Framework framework, bool fp8 = false) {
    PlanRequest request = SmallMoe(8);
    request.fixed = ParseFixed(fixed);
    request.fp8 = fp8;
    const std::string one = Failure([&] { Found(request, framework, {"1f1b"}); });
    CHECK(Failure([&] { Found(request, framework); }) == one);
    return one;
  };
  const std::string head = "runs none of the configurations: ";
  CHECK(why("zero=2,pp=2", Framework::kMegatron) == "`for`: megatron " + head + "it has no ZeRO-2");
  CHECK(why("tp=2,pp=2", Framework::kTorch) ==
        "`for`: torch " + head + "its stages are not split over tensor-parallel devices");
  CHECK(why("tp=2,ep=1,pp=2", Framework::kTorchtitan) ==
        "`for`: torchtitan " + head + "its experts need ep >= tp");
  CHECK(why("pp=2", Framework::kTorchtitan, true) ==
        "`for`: torchtitan " + head + "its flags have no fp8; give `dtype` bf16");
}

TEST_CASE("launch: a model that a framework has no modules for is refused by its name") {
  PlanRequest request = SmallMoe(4);
  request.model.predictions = 1;
  request.model.prediction = request.model.layers.back();
  const auto why = [&](Framework framework) {
    return Failure([&] { Found(request, framework, {"1f1b"}); });
  };
  CHECK(why(Framework::kTorchtitan) ==
        "`for`: torchtitan runs none of the plans that fit: torchtitan has no module for a layer "
        "of multi-token prediction (m)");
  CHECK(why(Framework::kTorch) ==
        "`for`: torch runs none of the plans that fit: models of transformers have no layers of "
        "multi-token prediction");
  CHECK(why(Framework::kMegatron) == "accepted");
}

TEST_SUITE_END();

}  // namespace contraflow::planner_test
