#include "tools/profile/gpus.h"

#include <doctest/doctest.h>

#include <string>

#include "tests/tools/profile/profile_support.h"

namespace contraflow::gpus_test {
namespace {

/// A file with `member` in place of the one of its key, or without that key.
std::string Sheet(const std::string& key = "", const std::string& value = "") {
  std::string text;
  const std::pair<const char*, const char*> members[] = {
      {"name", "\"own\""},        {"bf16_tflops", "500"},   {"memory_gb", "96"},
      {"memory_gb_per_s", "4e3"}, {"link_gb_per_s", "200"}, {"network_gb_per_s", "25.5"}};
  bool used = key.empty();
  for (const auto& [name, each] : members) {
    used = used || key == name;
    if (key == name && value.empty()) continue;
    text +=
        (text.empty() ? "{\"" : ", \"") + std::string(name) + "\": " + (key == name ? value : each);
  }
  if (!used) text += ", \"" + key + "\": " + value;
  return text + "}";
}

TEST_SUITE("unit") {
  TEST_CASE("gpus: a name is that of one row, and each figure has its source") {
    CHECK(FindGpu("H100").name == "h100");
    for (const GpuSheet& gpu : GpuSheets()) {
      CAPTURE(gpu.name);
      CHECK(&FindGpu(gpu.name) == &gpu);
      CHECK((Contains(gpu.source, "sheet") || Contains(gpu.source, "brief")));
      CHECK((gpu.fp8 == 0 || std::abs(gpu.fp8 / gpu.bf16 - 2) < 0.03));
      CHECK(gpu.hbm > gpu.nvlink);
      CHECK(gpu.nvlink >= gpu.network);
      CHECK(gpu.memory % 1'000'000'000 == 0);
    }
    // A name that is near is of a GPU of another speed.
    for (const std::string other : {"h20x", "h10", "gh200", "v100", "l40", "mi300"}) {
      CAPTURE(other);
      const std::string text = Failure([&] { FindGpu(other); });
      CHECK(text.starts_with("unknown GPU \"" + other + "\"; known are: a100, a100-40gb, a800"));
      CHECK(text.ends_with("; or give a FILE.json with its figures"));
    }
  }

  TEST_CASE("gpus: a file has the figures of one") {
    const GpuSheet plain = ReadGpuFile(Sheet(), "g.json");
    CHECK(plain.name == "own");
    CHECK(plain.bf16 == 500e12);
    CHECK(plain.fp8 == 0);
    CHECK(plain.memory == 96'000'000'000);
    CHECK(plain.hbm == 4e12);
    CHECK(plain.nvlink == 200e9);
    CHECK(plain.network == 25.5e9);
    CHECK(plain.node == 8);
    CHECK(plain.source == "g.json");
    CHECK(ReadGpuFile(Sheet("fp8_tflops", "900"), "g.json").fp8 == 900e12);
    CHECK(ReadGpuFile(Sheet("node", "72"), "g.json").node == 72);
    CHECK(!plain.mx);
    CHECK(ReadGpuFile(Sheet("mx", "true"), "g.json").mx);
    const auto failure = [](const std::string& text) {
      return Failure([&] { ReadGpuFile(text, "g.json"); });
    };
    CHECK(failure(Sheet("bf16_tflops")) == "g.json: the key \"bf16_tflops\" is missing; add it");
    CHECK(failure(Sheet("bf16_tflops", "-1")) ==
          "g.json: /bf16_tflops: must be TFLOP/s without sparsity in 1..1e+06, is -1");
    CHECK(failure(Sheet("memory_gb", "\"80GB\"")) ==
          "g.json: /memory_gb: must be GB in 1..1e+05, is \"80GB\"");
    CHECK(failure(Sheet("node", "0")) == "g.json: /node: must be GPUs in 1..65536, is 0");
    CHECK(failure(Sheet("bf16_tflop", "1"))
              .starts_with("g.json: unknown key \"bf16_tflop\" (did you mean \"bf16_tflops\"?)"));
  }

  TEST_CASE("gpus: efficiencies of a sheet are taken where nothing else is said") {
    const std::string head =
        "{\"name\": \"own\", \"bf16_tflops\": 500, \"memory_gb\": 64, \"memory_gb_per_s\": 2000, "
        "\"link_gb_per_s\": 100, \"network_gb_per_s\": 25, ";
    const GpuSheet gpu = ReadGpuFile(
        head + R"("efficiency": "matmul=0.5,p2p=0.25", "collective_us": 20, "hop_us": 4})", "g");
    Efficiencies expected = DefaultEfficiencies(false);
    ParseEfficiencies("matmul=0.5,p2p=0.25", &expected);
    CHECK(EfficienciesOf(gpu, false) == expected);
    CHECK(EfficienciesOf(gpu, true) == DefaultEfficiencies(true));
    CHECK(gpu.shares.source == "g");
    CHECK(gpu.collective == doctest::Approx(20e-6));
    CHECK(gpu.hop == doctest::Approx(4e-6));
    CHECK(Contains(Failure([&] { ReadGpuFile(head + R"("efficiency": "matmul=2"})", "g"); }),
                   "g: /efficiency: the efficiency in \"matmul=2\" must be a share"));
    for (const GpuSheet& sheet : GpuSheets()) {
      for (const bool fp8 : {false, true}) {
        CAPTURE(sheet.name);
        for (const double share : EfficienciesOf(sheet, fp8)) CHECK((share > 0 && share <= 1));
      }
    }
    // Golden files have those of H100 and H800.
    for (const char* name : {"h100", "h800"}) {
      CHECK(EfficienciesOf(FindGpu(name), false) == DefaultEfficiencies(false));
      CHECK(EfficienciesOf(FindGpu(name), true) == DefaultEfficiencies(true));
    }
  }

  TEST_CASE("gpus: what spans a node takes the network, and a larger node less of it") {
    const ModelShape model = PublishedModel("deepseek-v3");
    CostSetup setup = SetupOn("gb200");
    setup.expert_parallel = 64;
    GpuSheet split = FindGpu("gb200");
    split.node = 8;
    const WorkOfLayer whole = BlockWork(model, setup, model.layers.back());
    CHECK(whole.dispatch.network_bytes == 0);
    setup.gpu = &split;
    CHECK(BlockWork(model, setup, model.layers.back()).dispatch.network_bytes > 0);
  }
}

}  // namespace
}  // namespace contraflow::gpus_test
