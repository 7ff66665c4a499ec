#include "runtime/model/model.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/model/gpu_views.h"
#include "runtime/model/model_json.h"
#include "runtime/model/parameters.h"
#include "tests/support/failure.h"

namespace contraflow::model_test {
namespace {

// The file "m.json" with this text, in the current folder for as long as the object lives.
struct ModelFile {
  explicit ModelFile(const std::string& text) : old(std::filesystem::current_path()) {
    folder = std::filesystem::temp_directory_path() /
             ("contraflow-model-test-" + std::to_string(getpid()));
    std::filesystem::create_directory(folder);
    std::filesystem::current_path(folder);
    std::ofstream("m.json") << text;
  }
  ~ModelFile() {
    std::filesystem::current_path(old);
    std::filesystem::remove_all(folder);
  }
  std::filesystem::path folder, old;
};

Model Read(const std::string& text) {
  const ModelFile file(text);
  return ReadModel("m.json");
}

std::string ReadFailure(const std::string& text) {
  return Failure([&] { Read(text); });
}

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("model: presets") {
  CHECK(ReadModel("default") == Model{});
  const Model tiny = ReadModel("tiny");
  CHECK(tiny.name == "tiny");
  CHECK(tiny.width == 16);
  CHECK(tiny.tokens() == 16);
  CheckModel(tiny, "tiny");
  CheckModel(Model{}, "default");
  CHECK(Failure([] { ReadModel("defualt"); }) ==
        "unknown model \"defualt\" (did you mean \"default\"?); known are: default, tiny, or a "
        "file such as ./model.json");
  CHECK(Failure([] { ReadModel(""); }) ==
        "unknown model \"\"; known are: default, tiny, or a file such as ./model.json");
  CHECK(Failure([] { ReadModel("./no-such-file.json"); }) ==
        "./no-such-file.json: cannot be read: No such file or directory");
}

TEST_CASE("model: a file sets what it names and leaves the rest") {
  const Model model = Read(R"({"name": "mine", "layers": 3, "width": 32, "heads": 2, "experts": 4,
      "top_k": 1, "expert_width": 20, "capacity_factor": 1.5, "vocabulary": 300, "sequence": 10, "batch": 2,
      "learning_rate": 0.5, "warmup_steps": 0, "beta1": 0.5, "beta2": 0.25, "epsilon": 1e-6,
      "weight_decay": 0, "decay_steps": 40, "minimum_learning_rate": 0.25, "clip": 1.5,
      "balance_loss": 0.5, "renormalise_top_k": true})");
  const Model want{.name = "mine",
                   .layers = 3,
                   .width = 32,
                   .heads = 2,
                   .experts = 4,
                   .top_k = 1,
                   .expert_width = 20,
                   .capacity_factor = 1.5f,
                   .vocabulary = 300,
                   .sequence = 10,
                   .batch = 2,
                   .learning_rate = 0.5f,
                   .warmup_steps = 0,
                   .beta1 = 0.5f,
                   .beta2 = 0.25f,
                   .epsilon = 1e-6f,
                   .weight_decay = 0,
                   .decay_steps = 40,
                   .minimum_learning_rate = 0.25f,
                   .clip = 1.5f,
                   .balance_loss = 0.5f,
                   .renormalise_top_k = true};
  CHECK(model == want);
  Model unnamed;
  unnamed.name = "m.json";
  CHECK(Read("{}") == unnamed);
}

TEST_CASE("model: what is written reads back as the same") {
  Model model = ReadModel("tiny");
  model.layers = 7;
  model.learning_rate = 1.0f / 3;
  model.beta2 = 0.9999f;
  for (const float capacity : {0.0f, 1.3f}) {
    model.capacity_factor = capacity;
    model.clip = capacity / 2;
    model.renormalise_top_k = capacity != 0;
    std::string text;
    WriteJson(ModelToJson(model), &text);
    const JsonDocument document = ParseJson(text, "written");
    CHECK(ModelFromJson(document.Root()) == model);
  }
}

TEST_CASE("model: malformed files are refused with path and remedy") {
  CHECK(ReadFailure(R"({"widht": 3})").find("unknown key \"widht\" (did you mean \"width\"?)") !=
        std::string::npos);
  CHECK(ReadFailure(R"({"width": 0})") == "m.json: /width: must be a width in 1..16384, is 0");
  CHECK(ReadFailure(R"({"width": 4294967360})") ==
        "m.json: /width: must be a width in 1..16384, is 4294967360");
  CHECK(ReadFailure(R"({"batch": -1})") ==
        "m.json: /batch: must be a number of sequences in 1..65536, is -1");
  CHECK(ReadFailure(R"({"learning_rate": -1})") ==
        "m.json: /learning_rate: must be a learning rate in 0..10, is -1");
  CHECK(ReadFailure(R"({"decay_steps": 10})") ==
        "m.json: /decay_steps: must be 0 or more than warmup_steps 10, is 10");
  CHECK(ReadFailure(R"({"minimum_learning_rate": 0.1})") ==
        "m.json: /minimum_learning_rate: must be at most the learning_rate");
  CHECK(ReadFailure(R"({"clip": -1})") == "m.json: /clip: must be a norm in 0..65536, is -1");
  CHECK(ReadFailure(R"({"renormalise_top_k": 1})") ==
        "m.json: /renormalise_top_k: must be a switch, true or false, is 1");
  CHECK(ReadFailure(R"({"heads": 5})") == "m.json: /heads: must divide width 64, is 5");
  CHECK(ReadFailure(R"({"width": 6, "heads": 2})") ==
        "m.json: /heads: each head must have an even width (rotary positions turn pairs), is 3");
  CHECK(ReadFailure(R"({"top_k": 9})") == "m.json: /top_k: must be at most experts 8, is 9");
  CHECK(ReadFailure(R"({"vocabulary": 255})") ==
        "m.json: /vocabulary: must be a number of tokens (256 bytes, or more) in 256..65536, is "
        "255");
  for (const char* factor : {"0", "-1", "0.001", "65"}) {
    CHECK(ReadFailure(R"({"capacity_factor": )" + std::string(factor) + "}") ==
          "m.json: /capacity_factor: must be a capacity factor (leave it out to drop no token) in "
          "0.01..64, is " +
              std::string(factor));
  }
  CHECK(ReadFailure(R"({"width": 64, "width": 64})") != "accepted");
  CHECK(ReadFailure(R"({"width": 64.5})") != "accepted");
  CHECK(ReadFailure(R"({"width": "64"})") != "accepted");
  CHECK(ReadFailure(R"({"learning_rate": 1e999})") != "accepted");
  CHECK(ReadFailure("[]") != "accepted");
  CHECK(ReadFailure("") != "accepted");
}

TEST_CASE("model: absurd sizes are refused before anything is allocated") {
  const auto fit_failure = [](const std::string& text) {
    return Failure([&] { FitModel(Read(text), 1); });
  };
  CHECK(fit_failure(R"({"width": 16384, "heads": 64, "experts": 4096, "expert_width": 65536})") ==
        "model \"m.json\": /width: with these layers, experts and widths the model has 105562251 "
        "million "
        "parameters, the host backend takes at most 268 million; make one of them smaller");
  CHECK(fit_failure(R"({"layers": 32768, "sequence": 65536, "batch": 65536, "width": 2,
                        "heads": 1, "experts": 1, "top_k": 1, "expert_width": 1})")
            .find("model \"m.json\": /sequence: with this sequence, batch and model one "
                  "micro-batch keeps") == 0);
  Model model;
  model.learning_rate = std::numeric_limits<float>::quiet_NaN();
  CHECK(Failure([&] { CheckModel(model, "here"); }) ==
        "here: /learning_rate: must be a learning rate in 0..10");
}

TEST_CASE("model: the size that is checked is the size that is allocated") {
  // Just under and just over the limit on parameters, by the number of layers.
  Model model;
  model.layers = 1;
  const auto size = [&] { return static_cast<double>(LayoutOfStage(model, 0, 1, {0, 8}).size); };
  const double ends = 2 * size();
  model.layers = 2;
  const double layer = size() - ends / 2;
  const double rest = ends / 2 - layer;
  model.sequence = 1;
  model.batch = 1;
  model.layers = static_cast<int>(((1 << 28) - rest) / layer);
  FitModel(model, 1);
  ++model.layers;
  CHECK(Failure([&] { FitModel(model, 1); }).find("model \"default\": /width: ") == 0);
}

TEST_CASE("model: layers are settled for the stages") {
  Model model = ReadModel("default");
  CHECK(FitModel(model, 1).layers == 8);
  CHECK(FitModel(model, 8).layers == 8);
  CHECK(FitModel(model, 16).layers == 16);
  model.layers = 5;
  CHECK(FitModel(model, 5).layers == 5);
  CHECK(Failure([&] { FitModel(model, 8); }) ==
        "model \"default\": /layers: stage 5 would have no layer, the model has 5; use `model` "
        "with layers >= 8 or a plan with fewer stages");
  model.capacity_factor = -1;
  CHECK(Contains(Failure([&] { FitModel(model, 5); }),
                 "/capacity_factor: must be a capacity factor"));
  model.capacity_factor = 0;
  model.layers = 0;
  CHECK(FitModel(model, 4, 3).layers == 12);
  CHECK(Contains(Failure([&] { FitModel(model, 1, 1, 3); }),
                 "/experts: must be a multiple of the 3"));
  CHECK(Contains(Failure([&] { FitModel(model, 1 << 15); }), "million parameters"));
}

TEST_CASE("model: GPUs have limits of their own for what each of them holds") {
  Model model = {.name = "big", .width = 4096, .heads = 32, .experts = 64, .expert_width = 1024};
  CHECK(Failure([&] { FitModel(model, 8); }) ==
        "model \"big\": /width: with these layers, experts and widths the model has 6983 million "
        "parameters, the host backend takes at most 268 million; make one of them smaller");
  const auto fit = [&](int stages, int members) {
    return Failure([&] { FitGpuModel(model, stages, 0, members); });
  };
  const auto is = [](const std::string& text, const std::string& part) {
    CAPTURE(text);
    CHECK(Contains(text, part));
  };
  CHECK(FitGpuModel(model, 8, 0, 1).layers == 8);
  model.layers = 64;
  is(fit(1, 1),
     "model \"big\": /width: the parameters of a stage take 1005 GB on each GPU, the largest have "
     "141 GB; make widths or experts smaller, or `expert_parallel` larger, or take more stages");
  CHECK(FitGpuModel(model, 8, 0, 1).layers == 64);
  CHECK(FitGpuModel(model, 4, 0, 4).layers == 64);
  model.layers = 8;
  model.sequence = 65536;
  model.batch = 4;
  is(fit(8, 1), "/sequence: one of the values has 3221 million numbers on each GPU, kernels take");
  model.batch = 2;
  model.top_k = 8;
  is(fit(8, 1), "/sequence: one of the values has 4294 million numbers");
  model.batch = 1;
  model.top_k = 1;
  is(fit(8, 16), "or give a capacity_factor");
  model.capacity_factor = 1;
  CHECK(FitGpuModel(model, 8, 0, 16).layers == 8);
  model.layers = 512;
  model.experts = 1;
  is(fit(8, 1), "/sequence: one micro-batch keeps ");
  model.expert_width = 65536;
  model.width = 1 << 14;
  model.heads = 128;
  is(fit(512, 1), "/width: one of the values has 2147 million numbers");
  model.batch = 65536;
  model.expert_width = 8;
  is(fit(512, 1), "/sequence: one of the values has ");
  model.top_k = 2;
  is(fit(512, 1), "/top_k: must be at most experts 1");
}

TEST_CASE("model: what only the CPU computes is refused for GPUs") {
  for (const char* field : {"\"balance_loss\": 1", "\"renormalise_top_k\": true"}) {
    const Model model = Read("{" + std::string(field) + "}");
    FitModel(model, 1);
    CHECK(Contains(Failure([&] { FitGpuModel(model, 1, 0, 1); }), "is for the CPU only"));
  }
}

TEST_CASE("model: the learning rate rises in a line and falls in half a cosine") {
  Model model;
  model.learning_rate = 0.5f;
  model.warmup_steps = 4;
  CHECK(LearningRate(model, 1) == 0.125);
  CHECK(LearningRate(model, 4) == 0.5);
  CHECK(LearningRate(model, 1'000'000) == 0.5);
  model.decay_steps = 12;
  model.minimum_learning_rate = 0.25f;
  CHECK(LearningRate(model, 3) == 0.375);
  CHECK(LearningRate(model, 4) == 0.5);
  CHECK(LearningRate(model, 8) == doctest::Approx(0.375));
  CHECK(LearningRate(model, 6) > 0.46);  // slowly at first
  CHECK(LearningRate(model, 12) == 0.25);
  CHECK(LearningRate(model, 1'000'000) == 0.25);
  model.warmup_steps = 0;
  CHECK(LearningRate(model, 6) == doctest::Approx(0.375));
}

TEST_CASE("model: an expert takes its share of the tokens times the capacity factor") {
  Model model;  // 256 tokens, 2 of 8 experts each
  CHECK(Capacity(model) == 0);
  CHECK(MostExpertRows(model, 4, 2) == 4 * 256 * 2);
  CHECK(MostExpertRows(model, 8, 1) == 8 * 256);
  model.capacity_factor = 1;
  CHECK(Capacity(model) == 64);
  model.capacity_factor = 1.26f;
  CHECK(Capacity(model) == 81);
  CHECK(MostExpertRows(model, 4, 2) == 4 * 2 * 81);
  model.capacity_factor = 64;
  CHECK(Capacity(model) == 256);
}

TEST_CASE("model: layers are spread evenly earlier stages get the remainder") {
  for (int layers = 1; layers <= 12; ++layers) {
    Model model;
    model.layers = layers;
    for (int stages = 1; stages <= layers; ++stages) {
      int next = 0;
      for (int s = 0; s < stages; ++s) {
        const LayerRange range = LayersOfStage(model, s, stages);
        CHECK(range.first == next);
        const int count = range.last - range.first;
        CHECK(count == layers / stages + (s < layers % stages ? 1 : 0));
        next = range.last;
      }
      CHECK(next == layers);
    }
  }
}

TEST_CASE("model: a plan's own partition counts the layers with or without embedding and head") {
  Model model;
  model.layers = 6;
  CHECK(PartitionOf(model, {}).empty());
  CHECK(PartitionOf(model, {1, 5}) == Partition{1, 5});
  CHECK(PartitionOf(model, {3, 5}) == Partition{2, 4});
  CHECK(PartitionOf(model, {8}) == Partition{6});
  CHECK(PartitionOf(model, {4, 5}).empty());  // of another model
  const auto remedy = [&](const Partition& planned) {
    const std::string why = Failure([&] { PartitionOf(model, planned); });
    return why.substr(why.find("; "));
  };
  CHECK(Failure([&] {
          PartitionOf(model, {1, 7});
        }) ==
        "stage 0 of the plan has the embedding alone, and contraflow-run computes it with a layer "
        "of the model; compile it with `partition` 2,6");
  CHECK(Failure([&] {
          PartitionOf(model, {7, 1});
        }).starts_with("stage 1 of the plan has the head alone"));
  CHECK(remedy({2, 5, 1}) == "; compile it with `partition` 2,4,2");
  CHECK(remedy({1, 6, 1}) == "; compile it with `partition` 2,4,2");
  CHECK(remedy({2, 1, 1, 2, 1, 1}) == "; compile it with `partition` 2,1x4,2");
  CHECK(remedy({2, 1, 1, 1, 1, 1, 1}) == "; compile it for fewer stages");
  model.partition = {1, 3, 2};
  CHECK(LayersOfStage(model, 1, 3).first == 1);
  CHECK(LayersOfStage(model, 1, 3).last == 4);
  CHECK(LayersOfStage(model, 2, 3).last == 6);
  CHECK(LayersOfStage(model, 0, 2).last == 3);  // of other stages
}

TEST_SUITE_END();

}  // namespace contraflow::model_test
