#include "tools/cli/layer_layout.h"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "tests/support/failure.h"
#include "tests/support/sanitized.h"

namespace contraflow::layer_layout_test {
namespace {

LayerCost Layer(const std::string& name, int repeat) {
  return {.name = name, .repeat = repeat, .cost = {.f = 1, .b = 1, .w = 1, .bw = 2, .fb = 3}};
}

std::string WhyNot(const std::string& text) {
  return Failure([&] { ParseLayerLayout(text); });
}

TEST_SUITE("unit") {
  TEST_CASE("layer layout: what Megatron-LM's docs say") {
    CHECK(ParseLayerLayout("Ettt|(tt|)*2,m|L") == LayerLayout{"Ettt", "tt", "tt", "m", "L"});
    CHECK(ParseLayerLayout("Et*3|(tt|)*29,m|L").size() == 32);
    CHECK(ParseLayerLayout("E(tt)*2L") == LayerLayout{"EttttL"});
    CHECK(ParseLayerLayout("E|(|t*2)*2,L") == LayerLayout{"E", "", "tt", "ttL"});
    CHECK(ParseLayerLayout("E|*3L") == LayerLayout{"E", "", "", "L"});
    CHECK(ParseLayerLayout("Et*0(t|)*0L") == LayerLayout{"EL"});
    CHECK(ParseLayerLayout("") == LayerLayout{""});
    CHECK(IsLayerLayout("EtL"));
    CHECK(IsLayerLayout("t|t"));
    for (const char* text : {"even", "auto", "4,4", "4x3,2"}) CHECK_FALSE(IsLayerLayout(text));
  }

  TEST_CASE("layer layout: what is none") {
    const auto wrong = [](const std::string& shown) {
      return "`partition`: the layout has a '" + shown +
             "' where a layer (E, t, m or L) or a | between stages must be; repeats are x*n and "
             "(..)*n, as in \"Et*3|(tt|)*29,m|L\"";
    };
    CHECK(WhyNot("Ex|L") == wrong("x"));
    CHECK(WhyNot("E(t|)L") == wrong("("));
    CHECK(WhyNot("E()*3L") == wrong("("));
    CHECK(WhyNot("E((t|)*2)*2L") == wrong("("));
    CHECK(WhyNot("Et*|L") == wrong("*"));
    CHECK(WhyNot("*3") == wrong("*"));
    CHECK(WhyNot("E\x01L") == wrong(""));
    CHECK(WhyNot("Et3L") == wrong("3"));
    const std::string many = "`partition`: the layout has more than 36864 layers and stages";
    for (const char* text : {"Et*99999999999999999999L", "E(t*4000|)*100L", "E(t|)*99999L"}) {
      CHECK(WhyNot(text) == many);
    }
    CHECK(WhyNot(std::string(40'000, 't')) == many);
  }

  TEST_CASE("layer layout: what is written is read as it was") {
    std::mt19937_64 random(17);
    for (int i = 0; i < CasesToDraw(2000); ++i) {
      LayerLayout layout;
      const size_t stages = 1 + random() % 12;
      while (layout.size() < stages) {
        std::string stage;
        for (const char c : {'E', 't', 'm', 'L'}) stage.append(random() % 4 * (random() % 2), c);
        layout.insert(layout.end(), random() % 3 == 0 ? 1 + random() % 6 : 1, stage);
      }
      const std::string text = FormatLayerLayout(layout);
      CAPTURE(text);
      CHECK(ParseLayerLayout(text) == layout);
    }
    CHECK(FormatLayerLayout(ParseLayerLayout("Ettt|(tttt|)*14tmL")) == "Et*3|(t*4|)*14tmL");
  }

  TEST_CASE("layer layout: the hand-written ones of Megatron-Bridge's recipes") {
    std::ifstream file(CF_TEST_DIR "/reference/megatron_layouts.json");
    const nlohmann::json recipes = nlohmann::json::parse(file);
    int count = 0;
    for (const auto& recipe : recipes["layouts"]) {
      const std::string text = recipe["layout"];
      CAPTURE(text);
      const LayerLayout layout = ParseLayerLayout(text);
      const int ranks = recipe["ranks"], layers = recipe["layers"], mtp = recipe["mtp"];
      CHECK(FlawOf(layout, ranks) == "");
      CHECK(ParseLayerLayout(FormatLayerLayout(layout)) == layout);
      std::string letters;
      bool empty = false;
      for (const std::string& stage : layout) {
        letters += stage;
        empty = empty || stage.empty();
      }
      CHECK(letters == "E" + std::string(static_cast<size_t>(layers), 't') +
                           std::string(static_cast<size_t>(mtp), 'm') + "L");
      // The layout goes to the partition of a model with these layers, and back.
      CostModel costs;
      costs.layers = {Layer("embedding", 1), Layer("block", layers)};
      if (mtp > 0) costs.layers.push_back(Layer("mtp", mtp));
      costs.layers.push_back(Layer("head", 1));
      ++count;
      if (empty) {
        CHECK_THROWS_WITH_AS(
            PartitionOf(layout, costs),
            "`partition`: stage 2 of the layout has no layer of the costs; every stage needs one",
            Error);
        continue;
      }
      Plan plan;
      plan.stages = static_cast<int>(layout.size());
      plan.costs.emplace();
      plan.costs->partition = PartitionOf(layout, costs);
      for (const LayerCost& layer : costs.layers) {
        plan.costs->partition_of.push_back({layer.name, layer.repeat});
      }
      CHECK(LayoutOf(plan) == layout);
    }
    CHECK(count == 9);
  }

  TEST_CASE("layer layout: what Megatron-LM does not take") {
    const auto flaw = [](const std::string& text, int ranks) {
      return FlawOf(ParseLayerLayout(text), ranks);
    };
    CHECK(flaw("Et|t|tL", 2) == "3 stages are not equally many on each of 2 ranks");
    CHECK(flaw("Et|tL", 1) == "it has chunks (2) on more than one rank only");
    CHECK(flaw("EtL", 1) == "");
    const std::string begin = "its layers must begin with the embedding and have it once";
    const std::string end = "its layers must end with the head and have it once";
    CHECK(flaw("t|tL", 2) == begin);
    CHECK(flaw("Et|EL", 2) == begin);
    CHECK(flaw("|L", 2) == begin);
    CHECK(flaw("Et|t", 2) == end);
    CHECK(flaw("EL|tL", 2) == end);
    CHECK(flaw("|EtL|", 3) == "");
    CHECK(flaw("Em|tL", 2) == "a transformer layer stands after one of multi-token prediction");
    CHECK(flaw("Et|m|mL", 3) == "the layers of multi-token prediction must be in one stage");
    CHECK(flaw("Et|m|L|", 2) ==
          "the layer of multi-token prediction must be in the last chunk of its rank, and is in "
          "stage 1");
    CHECK(flaw("Et|t|mm|L", 2) == "");
  }

  TEST_CASE("layer layout: lists of names, as Megatron-Bridge has them") {
    const std::pair<const char*, const char*> known[] = {
        {R"([["embedding","decoder","decoder"],["decoder","loss"]])", "Ett|tL"},
        {"[['embedding','decoder'],['decoder'],['loss']]", "Et|t|L"},
        {R"([["embedding"] + ["decoder"] * 16, ["decoder"] * 16, ["decoder"]*13 + ["mtp", "loss"]])",
         "Et*16|t*16|t*13mL"},
        {R"([["embedding"] + ["decoder"] * 4] + [["decoder"] * 4] * 14 + [["decoder", "mtp", "loss",],])",
         "Et*4|(t*4|)*14tmL"},
        {" [ [\"embedding\"] ,\n [ ] , [\"decoder\" , \"loss\"] ] ", "E||tL"},
        {"[['embedding'] * 0 + ['decoder'], ['mtp'], ['loss']]", "t|m|L"}};
    for (const auto& [lists, text] : known) {
      CAPTURE(lists);
      CHECK(IsLayerLayout(lists));
      CHECK(ParseLayerLayout(lists) == ParseLayerLayout(text));
    }
    const auto why = [](const char* lists) -> std::string {
      try {
        ParseLayerLayout(lists);
      } catch (const Error& error) {
        const std::string what = error.what();
        const size_t begin = what.find("at byte ") + 8;
        return what.substr(begin, what.find(", as in") - begin);
      }
      return "";
    };
    CHECK(why("[]") == "2: there must be a stage");
    CHECK(why("[") == "1: a list must be here");
    CHECK(why("['embedding', 'loss']") == "1: a list must be here");
    CHECK(why("[['embedding', 'los']]") == "15: a layer must be embedding, decoder, mtp or loss");
    CHECK(why("[['embedding', 'loss]]") == "15: a layer's name in quotes must be here");
    CHECK(why("[[embedding]]") == "2: a layer's name in quotes must be here");
    CHECK(why("[['embedding' 'loss']]") == "14: a comma or ] must be here");
    CHECK(why("[['decoder'] * -2]") == "15: a number must follow *");
    CHECK(why("[['decoder'] * 99999999999999999999]") == "15: a number must follow *");
    CHECK(why("[['loss']] 3") == "11: nothing may come after the lists");
    CHECK(why("[['decoder'] * 999999999]").ends_with("there are too many layers"));
    CHECK(why("[['decoder'] * 9999] * 9999").ends_with("there are too many layers"));
    CHECK(why("[['loss']] + 'x'") == "13: a list must be here");
  }

  TEST_CASE("layer layout: a partition has the layers of the costs") {
    CostModel costs;
    costs.layers = {Layer("embedding", 1), Layer("dense", 1), Layer("moe", 3), Layer("head", 1)};
    const auto partition = [&](const char* text) {
      return PartitionOf(ParseLayerLayout(text), costs);
    };
    CHECK(partition("Et|tt|tL") == Partition{2, 2, 2});
    CHECK(partition("E|tttt|L") == Partition{1, 4, 1});
    const auto why = [&](const char* text) -> std::string {
      return Failure([&] { partition(text); });
    };
    CHECK(why("Et|tL") == "`partition`: the layout has 2 transformer layers (t), the costs have 4");
    CHECK(why("Ettttm|L") == "`partition`: the layout has 1 MTP layer (m), the costs have 0");
    CHECK(why("tE|tttL") ==
          "`partition`: the layout has its layers in another order than the costs, E t.. m.. L "
          "against EttttL");
    CHECK(why("Et||tttL") ==
          "`partition`: stage 1 of the layout has no layer of the costs; every stage needs one");
    // A layer that the costs do not have is none.
    costs.layers = {Layer("block", 4)};
    CHECK(partition("Et|tttL") == Partition{1, 3});
    CHECK(why("E|ttttL") ==
          "`partition`: stage 0 of the layout has no layer of the costs; every stage needs one; "
          "give the costs a layer \"embedding\" for it");
    CHECK(why("Etttt|L") ==
          "`partition`: stage 1 of the layout has no layer of the costs; every stage needs one; "
          "give the costs a layer \"head\" for it");
    costs.layers.clear();
    CHECK(why("Et|tttL") ==
          "`partition`: says what layers each stage has, and these costs are of stages; give costs "
          "with \"layers\"");
    CHECK(LettersOf({{"embedding", 1}, {"block", 2}, {"mtp", 1}, {"lm_head", 1}}) == "EttmL");
  }
}

}  // namespace
}  // namespace contraflow::layer_layout_test
