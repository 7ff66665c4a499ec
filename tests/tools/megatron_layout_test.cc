#include <doctest/doctest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "schedules/published/rows.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"
#include "tools/interop/interop.h"

namespace contraflow::megatron_layout_test {
namespace {

Plan Order(const char* schedule, int ranks, int microbatches, int chunks = 0) {
  Spec spec = MakeSpec(schedule, ranks, microbatches, UniformCosts(1, 1, 1));
  spec.chunks = chunks;
  return GeneratePlan(spec);
}

std::map<std::string, std::string> Arguments(const std::string& text) {
  std::map<std::string, std::string> arguments;
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    const size_t space = std::min(line.find(' '), line.size());  // a flag has no value
    std::string value = line.substr(std::min(space + 1, line.size()));
    // Unquotes like a shell.
    if (value.starts_with('\'')) {
      REQUIRE(value.ends_with('\''));
      value = value.substr(1, value.size() - 2);
    }
    CHECK(value.find_first_of("'\" ") == std::string::npos);
    CHECK(arguments.emplace(line.substr(0, space), value).second);
  }
  return arguments;
}

/// Repeats the text before each "*n" as often as it says: first (...)*n, then x*n.
std::string Unrolled(std::string text) {
  for (const bool groups : {true, false}) {
    for (size_t star; (star = text.find(groups ? ")*" : "*")) != std::string::npos;) {
      const size_t begin = groups ? text.rfind('(', star) : star - 1;
      const std::string unit =
          groups ? text.substr(begin + 1, star - begin - 1) : text.substr(begin, 1);
      size_t end = star + (groups ? 2 : 1), count = 0;
      for (; end < text.size() && text[end] >= '0' && text[end] <= '9'; ++end) {
        count = 10 * count + static_cast<size_t>(text[end] - '0');
      }
      std::string all;
      for (size_t i = 0; i < count; ++i) all += unit;
      text = text.substr(0, begin) + all + text.substr(end);
    }
  }
  return text;
}

std::vector<std::string> Stages(const std::string& layout) {
  std::vector<std::string> stages = {""};
  for (const char c : Unrolled(layout)) {
    if (c == '|') {
      stages.emplace_back();
    } else {
      stages.back() += c;
    }
  }
  return stages;
}

/// Assertions of Megatron-LM about a layout (validate_layer_layout).
void CheckRules(const std::map<std::string, std::string>& arguments, int ranks) {
  const std::vector<std::string> stages = Stages(arguments.at("--pipeline-model-parallel-layout"));
  REQUIRE(stages.size() % static_cast<size_t>(ranks) == 0);
  std::string flat;
  for (const std::string& stage : stages) flat += stage;
  CHECK(flat.find_first_not_of("EtmL") == std::string::npos);
  CHECK(flat.front() == 'E');
  CHECK(flat.back() == 'L');
  const auto count = [&](char c) { return std::ranges::count(flat, c); };
  CHECK(count('E') == 1);
  CHECK(count('L') == 1);
  CHECK(std::to_string(count('t')) == arguments.at("--num-layers"));
  CHECK(arguments.contains("--mtp-num-layers") == (count('m') > 0));
  if (count('m') == 0) return;
  CHECK(std::to_string(count('m')) == arguments.at("--mtp-num-layers"));
  CHECK(flat.rfind('t') < flat.find('m'));
  for (size_t s = 0; s < stages.size(); ++s) {
    const auto here = std::ranges::count(stages[s], 'm');
    if (s + static_cast<size_t>(ranks) < stages.size()) CHECK(here == 0);
    CHECK((here == 0 || here == count('m')));
  }
}

TEST_SUITE("unit") {
  TEST_CASE("megatron: what 1F1B and interleaved 1F1B are started with") {
    CHECK(WriteMegatronLayout(Order("1f1b", 4, 8), {}) ==
          "--pipeline-model-parallel-size 4\n"
          "--pipeline-model-parallel-layout 'Et|t|t|tL'\n"
          "--num-layers 4\n"
          "--micro-batch-size 1\n"
          "--global-batch-size 8\n");
    CHECK(WriteMegatronLayout(Order("interleaved-1f1b", 4, 8), "18") ==
          "--pipeline-model-parallel-size 4\n"
          "--pipeline-model-parallel-layout 'Ett|t*3|t*3|(tt|)*4ttL'\n"
          "--microbatch-group-size-per-virtual-pipeline-stage 4\n"
          "--num-layers 18\n"
          "--micro-batch-size 1\n"
          "--global-batch-size 8\n");
    CHECK(Arguments(WriteMegatronLayout(Order("1f1b", 1, 3), {}))
              .at("--pipeline-model-parallel-layout") == "EtL");
  }

  TEST_CASE("megatron: a number of layers is for stages that are alike in f, b and w") {
    Spec spec = MakeSpec("1f1b", 2, 2, UniformCosts(4, 4, 4));
    const auto failure = [&](auto change) -> std::string {
      Spec other = spec;
      other.costs.stages.resize(2, other.costs.stages[0]);
      change(&other.costs.stages[1]);
      other.costs.stages[1].bw = other.costs.stages[1].b + other.costs.stages[1].w;
      other.costs.stages[1].fb = other.costs.stages[1].f + other.costs.stages[1].bw;
      Plan plan = GeneratePlan(other);
      plan.costs = other.costs;
      return Failure([&] { WriteMegatronLayout(plan, "5"); });
    };
    CHECK(failure([](StageCost*) {}) == "accepted");
    CHECK(failure([](StageCost* stage) { stage->w = 6; }) == "accepted");  // rounded
    for (const auto member : {&StageCost::f, &StageCost::b, &StageCost::w}) {
      CHECK(failure([&](StageCost* stage) {
              stage->*member = 12;
            }).starts_with("the stages of this plan differ"));
    }
  }

  TEST_CASE("megatron: recomputed whole, or in the first layers of each stage") {
    const auto of = [](const char* recompute, int layers, const char* stages = "8") {
      CostModel costs = UniformCosts(1, 1, 1);
      costs.shares = {std::vector<LayerShare>(static_cast<size_t>(layers))};
      Spec spec = MakeSpec("1f1b", 4, 8, costs);
      spec.recompute = ParseRecompute(recompute);
      Plan plan = GeneratePlan(spec);
      plan.costs = costs;
      return WriteMegatronLayout(plan, stages);
    };
    const auto whole = Arguments(of("full", 2));
    CHECK(whole.at("--recompute-granularity") == "full");
    CHECK(whole.at("--recompute-method") == "uniform");
    CHECK(whole.at("--recompute-num-layers") == "2");
    // Older releases of Megatron-LM take a divisor of the layers of each stage alone.
    const auto chunk = [&](const char* stages) {
      return Arguments(of("full", 2, stages)).at("--recompute-num-layers");
    };
    CHECK(chunk("Etttt|tttt|tttt|ttL") == "2");
    CHECK(chunk("Ett|ttt|ttt|ttL") == "1");
    CHECK(chunk("Ett|tt|tt|ttmL") == "1");
    // Two transformer layers a stage, the first with the embedding, which is none.
    const auto block = Arguments(of("layers=1", 2));
    CHECK(block.at("--recompute-granularity") == "full");
    CHECK(block.at("--recompute-method") == "block");
    CHECK(block.at("--recompute-num-layers") == "1");
    // The last stage has one layer, beside the head: its first two are all.
    const auto fewer = [](const char* stages, std::initializer_list<int> layers) {
      CostModel costs = UniformCosts(1, 1, 1);
      for (const int count : layers) costs.shares.emplace_back(static_cast<size_t>(count));
      costs.stages.resize(layers.size(), costs.stages[0]);
      Spec spec = MakeSpec("1f1b", 4, 8, costs);
      spec.recompute = ParseRecompute("layers=2");
      Plan plan = GeneratePlan(spec);
      plan.costs = costs;
      return WriteMegatronLayout(plan, stages);
    };
    CHECK(Arguments(fewer("Ettt|ttt|ttt|ttL", {3, 3, 3, 2})).at("--recompute-num-layers") == "2");
    CHECK(Arguments(fewer("Ettt|ttt|ttt|tL", {3, 3, 3, 1})).at("--recompute-num-layers") == "2");
    CHECK(Failure([&] { of("layers=1:0,1", 2); }) ==
          "the plan recomputes some of its stages only, which Megatron-LM cannot say of stages; "
          "recompute all of them or none");
    CHECK(Failure([&] { of("layers=1,1,2,1", 3); }) ==
          "the plan recomputes the first layer of stages, and what is written for Megatron-LM "
          "recomputes whole stages, or as many layers of each; compile it with `recompute` full, "
          "layers=N or none");
    CHECK(Failure([&] { of("layers=2", 3); }) ==
          "the plan recomputes the first 2 layers of each stage; Megatron-LM counts transformer "
          "layers, which must be as many of each stage, and stage 1 is tt; compile it with "
          "`recompute` full or none");
  }

  TEST_CASE("megatron: layouts have every layer and stage") {
    for (const int ranks : {1, 2, 3, 8}) {
      for (const int chunks : {1, 2, 5}) {
        if (ranks == 1 && chunks > 1) continue;
        for (const int layers : {ranks * chunks, ranks * chunks + 1, 7 * ranks * chunks - 1, 126}) {
          CAPTURES(ranks, chunks, layers);
          const Plan plan = chunks == 1 ? Order("1f1b", ranks, 2 * ranks)
                                        : Order("interleaved-1f1b", ranks, 2 * ranks, chunks);
          const auto arguments = Arguments(WriteMegatronLayout(plan, std::to_string(layers)));
          CHECK(arguments.at("--num-layers") == std::to_string(layers));
          const std::vector<std::string> stages =
              Stages(arguments.at("--pipeline-model-parallel-layout"));
          REQUIRE(static_cast<int>(stages.size()) == ranks * chunks);
          CHECK(stages.front().starts_with('E'));
          CHECK(stages.back().ends_with('L'));
          size_t total = 0;
          for (const std::string& stage : stages) {
            const auto t = static_cast<size_t>(std::ranges::count(stage, 't'));
            const size_t ends =
                size_t{&stage == &stages.front()} + size_t{&stage == &stages.back()};
            CHECK(t + ends == stage.size());
            CHECK(t >= 1);
            CHECK(t - static_cast<size_t>(layers / (ranks * chunks)) <= 1);
            total += t;
          }
          CHECK(total == static_cast<size_t>(layers));
        }
      }
    }
  }

  TEST_CASE("megatron: 300 layouts of random models hold the rules of its own parser") {
    std::mt19937_64 random(93);
    int made = 0;
    while (made < 300) {
      const int ranks = 1 + static_cast<int>(random() % 8),
                chunks = ranks == 1 ? 1 : 1 + static_cast<int>(random() % 4);
      const int stages = ranks * chunks;
      Spec spec = MakeSpec(chunks == 1 ? "1f1b" : "interleaved-1f1b", ranks,
                           ranks * (1 + static_cast<int>(random() % 3)), {});
      spec.chunks = chunks == 1 ? 0 : chunks;
      const bool embedding = random() % 4 > 0, head = random() % 4 > 0;
      const int mtp = static_cast<int>(random() % 3),
                blocks = stages + static_cast<int>(random() % 90);
      std::vector<LayerCost>& layers = spec.costs.layers;
      const auto add = [&](const char* name, int repeat) {
        if (repeat == 0) return;
        const Time t = 1 + static_cast<Time>(random() % 5);
        layers.push_back({.name = name, .repeat = repeat, .cost = {t, t, t, 2 * t, 3 * t}});
      };
      add("embedding", embedding ? 1 : 0);
      add("dense", static_cast<int>(random() % 2));
      add("block", blocks);
      add("mtp", mtp);
      add("head", head ? 1 : 0);
      // Cuts anywhere.
      const int all = spec.costs.LayerCount();
      std::vector<int> cuts(static_cast<size_t>(all - 1));
      std::iota(cuts.begin(), cuts.end(), 1);
      std::shuffle(cuts.begin(), cuts.end(), random);
      cuts.resize(static_cast<size_t>(stages - 1));
      cuts.push_back(all);
      std::ranges::sort(cuts);
      PartitionChoice& partition = spec.partition.emplace();
      partition.kind = PartitionChoice::Kind::kList;
      std::adjacent_difference(cuts.begin(), cuts.end(), std::back_inserter(partition.layers));
      const Plan plan = GeneratePlan(spec);
      std::string text;
      try {
        text = WriteMegatronLayout(plan, {});
      } catch (const Error& error) {
        // Its rules for MTP are about stages.
        REQUIRE(mtp > 0);
        CHECK(Contains(std::string(error.what()), "multi-token prediction must be in"));
        continue;
      }
      CAPTURE(text);
      const auto arguments = Arguments(text);
      CheckRules(arguments, ranks);
      const std::vector<std::string> has = Stages(arguments.at("--pipeline-model-parallel-layout"));
      for (size_t s = 0; s < has.size(); ++s) {
        const size_t more = size_t{s == 0 && !embedding} + size_t{s + 1 == has.size() && !head};
        CHECK(has[s].size() == static_cast<size_t>(partition.layers[s]) + more);
      }
      ++made;
    }
  }

  TEST_CASE("megatron: longer rounds are groups of micro-batches") {
    Spec spec = MakeSpec("interleaved-1f1b", 4, 19, UniformCosts(1, 1, 1));
    const auto group = [&](int rounds) {
      return Arguments(WriteMegatronLayout(InterleavedInRounds(spec, rounds), {}))
          .at("--microbatch-group-size-per-virtual-pipeline-stage");
    };
    CHECK(group(1) == "19");
    CHECK(group(2) == "10");
    CHECK(group(4) == "5");
    CHECK_THROWS_WITH_AS(
        group(3),
        "Megatron-LM cannot run this plan: more than the last of its rounds are "
        "shorter than 7 micro-batches; it has only 1f1b, interleaved-1f1b and combined-1f1b",
        Error);
    spec.data_parallel = 4;
    spec.expert_parallel = 2;
    Plan plan = InterleavedInRounds(spec, 2);
    const auto arguments = Arguments(WriteMegatronLayout(plan, {}));
    CHECK(arguments.at("--global-batch-size") == std::to_string(19 * 8));
    CHECK(arguments.at("--expert-model-parallel-size") == "2");
    // The setup of the costs comes along: 8 devices a rank, 4 of which share a micro-batch.
    plan.expert_parallel = 8;
    plan.costs = UniformCosts(1, 1, 1);
    plan.costs->parallel = {.tp = 2, .cp = 2, .ep = 8, .etp = 1};
    const auto made = Arguments(WriteMegatronLayout(plan, {}));
    CHECK(made.at("--tensor-model-parallel-size") == "2");
    CHECK(made.at("--sequence-parallel").empty());
    CHECK(made.at("--context-parallel-size") == "2");
    CHECK(made.at("--expert-model-parallel-size") == "8");
    CHECK(made.at("--expert-tensor-parallel-size") == "1");
    CHECK(made.at("--global-batch-size") == std::to_string(19 * 4 * 2));
  }

  TEST_CASE("megatron: pairs of combined 1F1B overlap the all-to-alls of experts") {
    const auto of = [](Plan plan, const char* layers = "24") {
      return Failure([&] { WriteMegatronLayout(plan, layers); });
    };
    Spec spec = MakeSpec("combined-1f1b", 4, 8, UniformCosts(1, 1, 1));
    spec.expert_parallel = 8;
    CHECK(WriteMegatronLayout(GeneratePlan(spec), "8") ==
          "--pipeline-model-parallel-size 4\n"
          "--pipeline-model-parallel-layout 'Et|(t|)*6tL'\n"
          "--microbatch-group-size-per-virtual-pipeline-stage 4\n"
          "--num-layers 8\n"
          "--expert-model-parallel-size 8\n"
          "--overlap-moe-expert-parallel-comm\n"
          "--micro-batch-size 1\n"
          "--global-batch-size 64\n");
    Plan plan = GeneratePlan(spec);
    std::swap(plan.programs[3].front(), plan.programs[3][1]);
    CHECK(
        of(plan).starts_with("Megatron-LM cannot run this plan: rank 3 runs F s3 m1 where "
                             "combined-1f1b runs F s3 m0; it has only"));
    const std::string head = "Megatron-LM overlaps pairs of a forward and a backward only ";
    CHECK(of(GeneratePlan(spec), "Et|t|t|t|t|t|t|tmmL") ==
          head + "with at most one layer of multi-token prediction");
    spec.recompute = ParseRecompute("full");
    CHECK(of(GeneratePlan(spec)) ==
          head + "where no forward runs again: compile without `recompute`");
    CHECK(of(Order("combined-1f1b", 4, 8)) ==
          head + "with experts on several devices: give `expert_parallel`");
  }

  TEST_CASE("megatron: why it cannot run a plan") {
    const auto why = [](const Plan& plan, std::optional<std::string> layers = {}) -> std::string {
      return Failure([&] { WriteMegatronLayout(plan, layers); });
    };
    const std::string head = "Megatron-LM cannot run this plan: ";
    const std::string tail = "; it has only 1f1b, interleaved-1f1b and combined-1f1b";
    CHECK(why(Order("dualpipe", 4, 8)) == head + "its micro-batches take 2 routes" + tail);
    CHECK(why(Order("zb-v", 4, 8)) == head + "stage 4 is on rank 3, not on rank 0" + tail);
    CHECK(why(Order("zb-1p", 4, 8)) == head + "B s0 m0 splits a backward" + tail);
    CHECK(why(Order("gpipe", 4, 8)) ==
          head + "rank 0 runs F s0 m4 where 1f1b runs BW s0 m0" + tail);
    CHECK(why(Order("interleaved-1f1b", 4, 3)) ==
          head + "a round of 3 micro-batches is shorter than the pipeline" + tail);
    Plan plan = Order("interleaved-1f1b", 2, 4);
    std::swap(plan.programs[1][1], plan.programs[1][2]);
    CHECK(why(plan) == head + "rank 1 runs F s3 m0 where interleaved-1f1b runs F s1 m1" + tail);
    plan = Order("1f1b", 3, 4);
    plan.routes[0].ranks.push_back(0);
    plan.stages = 4;
    CHECK(why(plan) == head + "4 stages are not equally many on each of 3 ranks" + tail);
    CHECK(why(Order("interleaved-1f1b", 1, 4)) == head + "it has chunks (2) on one rank" + tail);
    const Plan four = Order("1f1b", 4, 8);
    CHECK(why(four, "3") == "`layers`: must be in 4..1048576, at least one for each stage, is 3");
    CHECK(why(four, "99999999999") ==
          "`layers`: must be in 4..1048576, at least one for each stage, is 99999999999");
    CHECK(why(four, "2,2") == "`layers`: is of 2 stages, and the plan has 4");
    for (const std::string text : {"even", "2,x", ",2", "2,", "$(id)", ""}) {
      CAPTURE(text);
      CHECK(
          why(four, text) ==
          "`layers`: must be how many layers there are or each stage has, as in 24 or 6,5x6,4, or "
          "a layout such as Et*6|(t*6|)*6t*4L, is \"" +
              text + "\"");
    }
    CHECK(why(four, "Et|t|q|L").starts_with("`layers`: the layout has a 'q' where"));
    CHECK(why(four, "Et|t|m|tL") ==
          "Megatron-LM does not take the layout Et|t|m|tL: a transformer layer stands after one of "
          "multi-token prediction; compile with another `partition`");
    // Stages that differ, of unknown layers.
    plan = four;
    plan.costs = UniformCosts(1, 1, 1);
    plan.costs->stages.resize(4, plan.costs->stages[0]);
    CHECK(why(plan) == "accepted");
    plan.costs->stages[1].f += 1000;
    const std::string differ =
        "the stages of this plan differ, and its costs do not say how many layers each has; give "
        "`layers` as a list such as 6,5x6,4, or a layout such as Et*6|(t*6|)*6t*4L";
    CHECK(why(plan) == differ);
    CHECK(why(plan, "42") == differ);
    CHECK(why(plan, "10,11x2,10") == "accepted");
    // The costs decide.
    plan.costs->partition = {3, 2, 2, 2};
    plan.costs->partition_of = {{"embedding", 1}, {"block", 7}, {"head", 1}};
    CHECK(why(plan, "7") == "accepted");
    CHECK(why(plan, "Ett|tt|tt|tL") == "accepted");
    for (const char* layers : {"8", "Et|tt|tt|ttL"}) {
      CHECK(why(plan, layers) ==
            "`layers`: the costs of the plan have the layers Ett|tt|tt|tL; leave it out");
    }
    plan.costs->partition_of.clear();
    CHECK(why(plan) ==
          "the stages of this plan are of 3,2x3 layers of its costs, and it does not say which of "
          "these are transformer layers; compile it again, or give `layers` as a layout such as "
          "Et*6|(t*6|)*6t*4L");
  }

  TEST_CASE("megatron: the order is that of its schedule table") {
    // Megatron-LM numbers the forwards of every rank by groups of micro-batches and, within a
    // group, by chunks; it runs 2(P-1-r) + (V-1) * group of them before the first backward.
    for (const int ranks : {2, 3, 4}) {
      for (const int chunks : {2, 3}) {
        for (int group = ranks; group <= ranks + 3; ++group) {
          const int microbatches = 3 * group;
          Spec spec = MakeSpec("interleaved-1f1b", ranks, microbatches, UniformCosts(1, 1, 1));
          spec.chunks = chunks;
          const Plan plan = InterleavedInRounds(spec, 3);
          REQUIRE(WriteMegatronLayout(plan, {}) != "");
          std::vector<std::pair<int, int>> table;
          for (int first = 0; first < microbatches; first += group) {
            for (int chunk = 0; chunk < chunks; ++chunk) {
              for (int m = first; m < first + group; ++m) table.emplace_back(m, chunk);
            }
          }
          for (int r = 0; r < ranks; ++r) {
            const size_t warmup = static_cast<size_t>(2 * (ranks - 1 - r) + (chunks - 1) * group);
            Program expected;
            const auto add = [&](Op op, size_t k) {
              const auto [m, chunk] = table[k];
              const int visit = op == Op::F ? chunk : chunks - 1 - chunk;
              expected.push_back(CellOp(op, visit * ranks + r, m));
            };
            for (size_t k = 0; k < warmup; ++k) add(Op::F, k);
            for (size_t k = 0; k < table.size(); ++k) {
              if (k + warmup < table.size()) add(Op::F, k + warmup);
              add(Op::BW, k);
            }
            CHECK(plan.program(r) == expected);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace contraflow::megatron_layout_test
