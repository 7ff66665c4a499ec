#include "runtime/gpu/matmul_choices.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "compiler/files/file.h"
#include "compiler/plan/error.h"
#include "runtime/gpu/check.h"
#include "runtime/gpu/device.h"
#include "runtime/gpu/run.h"
#include "runtime/gpu/serial_run.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/emulator/emulator.h"
#include "tests/emulator/test_gpu.h"
#include "tests/runtime/gpu/gpu_plan.h"
#include "tests/support/failure.h"
#include "tests/support/run_support.h"
#include "tests/support/sanitized.h"
#include "tests/support/test_folder.h"

namespace contraflow::matmul_choices_test {
namespace {

namespace fs = std::filesystem;
using gpu::MatmulAlgorithm;
using gpu::MatmulShape;

constexpr uint64_t kHigh = 0xfedcba9876543210;
constexpr int kSms = 4;

MatmulShape ShapeOf(int m) {
  return {.transpose_b = Transpose::kYes, .m = m, .n = 8, .k = 16, .float_out = true, .batch = 2};
}

MatmulFile TwoPlaces() {
  const MatmulAlgorithm algorithm = {1, kHigh, 0, 0, 0, 0, 0, ~uint64_t{0}};
  return {{{"GPU \"a\"", "library 1", 8}, {{ShapeOf(1), algorithm}, {ShapeOf(2), {7}}}},
          {{"GPU b", "library 2", 9}, {{ShapeOf(1), {}}}}};
}

/// A GPU with one stream, and what chooses there.
struct Chooser {
  Chooser() { gpu.Partition(1, 0); }
  MatmulChoices Choose(const std::string& path) {
    return ChooseMatmuls(path, products, gpu, stream(), kSms);
  }
  gpu::Stream stream() { return gpu.NewStream(0, Priority::kNormal, "setup"); }
  size_t Products() const {
    size_t count = 0;
    for (const GpuCall& call : log) count += call.kernel == "Matmul";
    return count;
  }

  std::vector<GpuCall> log;
  EmulatedGpu gpu{EmulatedGpuOptions{.log = &log}};
  std::vector<MatmulShape> products = {ShapeOf(1), ShapeOf(2), ShapeOf(1)};
};

std::string With(std::string text, const std::string& old, const std::string& put) {
  const size_t at = text.find(old);
  REQUIRE(at != std::string::npos);
  return text.replace(at, old.size(), put);
}

TEST_SUITE("unit") {
  TEST_CASE("matmul choices: a file reads back as it was written") {
    const MatmulFile file = TwoPlaces();
    const std::string text = WriteMatmulFile(file);
    CHECK(ParseMatmulFile(text, "f") == file);
    CHECK(WriteMatmulFile(ParseMatmulFile(text, "f")) == text);
    CHECK(ParseMatmulFile(WriteMatmulFile({}), "f").empty());
  }

  TEST_CASE("matmul choices: a file that is none is refused, with its place") {
    const std::string text = WriteMatmulFile(TwoPlaces());
    const auto refused = [](const std::string& document, const std::string& why) {
      CAPTURE(document);
      const std::string refusal = Failure([&] { ParseMatmulFile(document, "f"); });
      CHECK(refusal.starts_with("f:"));
      CHECK(Contains(refusal, why));
    };
    refused("", "f:");
    refused("[]", "must be a file of matrix products (an object)");
    refused(text.substr(0, text.size() / 2), "f:");
    refused(text + "1", "f:");
    refused(With(text, "contraflow-matmuls", "contraflow-plan"), "/format: must be");
    refused(With(text, "\"version\": 1", "\"version\": 2"),
            "/version: this program reads version 1 only; remove the file");
    refused(With(text, "\"sms\": 8", "\"sms\": 0"),
            "/places/0/sms: must be a number of SMs in 1..");
    refused(With(text, "\"m\": 2", "\"m\": 0"), "/places/0/products/1/m: must be a size in 1..");
    refused(With(text, "\"m\": 2", "\"m\": 9999999999"), "/places/0/products/1/m: ");
    refused(With(text, "\"m\": 2", "\"m\": 1"), "/places/0/products/1: is there twice");
    refused(With(text, "\"batch\": 2", "\"bach\": 2"), "bach");
    refused(With(text, "fedcba", "fedcbg"), "/algorithm: must be 128 hexadecimal digits");
    refused(With(text, "fedcba", "-edcba"), "/algorithm: must be 128 hexadecimal digits");
    refused(With(text, "fedcba", "fedcb"), "/algorithm: must be 128 hexadecimal digits");
    std::string many = "{\"format\": \"contraflow-matmuls\", \"version\": 1, \"places\": [{}";
    for (int i = 0; i < 64; ++i) many += ",{}";
    refused(many + "]}", "/places: must have at most 64 entries");
  }

  TEST_CASE("matmul choices: their digest tells them apart") {
    CHECK(DigestOf({}) == "");
    MatmulChoices one = TwoPlaces().begin()->second, other = one;
    CHECK(DigestOf(one).size() == 64);
    CHECK(DigestOf(one) == DigestOf(other));
    other.begin()->second = {5};
    CHECK(DigestOf(one) != DigestOf(other));
    other = one;
    other.erase(other.begin());
    CHECK(DigestOf(one) != DigestOf(other));
  }

  TEST_CASE("matmul choices: the fastest is taken, of equal ones the first of the library's list") {
    CHECK(FastestOf(std::vector<uint64_t>{5}) == 0);
    CHECK(FastestOf(std::vector<uint64_t>{5, 4, 6}) == 1);
    CHECK(FastestOf(std::vector<uint64_t>{5, 4, 4, 7, 4}) == 1);
    CHECK(FastestOf(std::vector<uint64_t>{3, 3}) == 0);
  }

  TEST_CASE("matmul choices: what a file has is taken and not timed, the rest timed and added") {
    const TestFolder folder;
    const std::string path = folder.File("choices.json");
    Chooser first;
    const MatmulChoices chosen = first.Choose(path);
    CHECK(chosen.size() == 2);
    const size_t timed = first.Products();
    CHECK(timed > 0);
    const std::string text = ReadFile(path, 1 << 20);

    Chooser again;
    CHECK(again.Choose(path) == chosen);
    CHECK(again.Products() == 0);
    CHECK(ReadFile(path, 1 << 20) == text);

    // The other of both algorithms, and two places more that stay as they are.
    MatmulFile file = ParseMatmulFile(text, path);
    const MatmulPlace here = {first.gpu.name(), gpu::Matmuls::Library(), kSms};
    REQUIRE(file.size() == 1);
    MatmulAlgorithm& other = file.at(here).at(ShapeOf(1));
    other[0] = 1 - other[0];
    file.merge(TwoPlaces());
    file.at(here).erase(ShapeOf(2));
    WriteFile(path, WriteMatmulFile(file));
    Chooser half;
    const MatmulChoices some = half.Choose(path);
    CHECK(some.at(ShapeOf(1)) == other);
    CHECK(half.Products() == timed / 2);
    const MatmulFile after = ParseMatmulFile(ReadFile(path, 1 << 20), path);
    CHECK(after.size() == 3);
    CHECK(after.at(here).size() == 2);

    // A choice that holds elsewhere is not taken.
    Chooser elsewhere;
    ChooseMatmuls(path, elsewhere.products, elsewhere.gpu, elsewhere.stream(), kSms + 1);
    CHECK(elsewhere.Products() == timed);
  }

  TEST_CASE("matmul choices: an algorithm that is none stops the run and the file stays") {
    const TestFolder folder;
    const std::string path = folder.File("choices.json");
    Chooser chooser;
    WriteFile(path, WriteMatmulFile({{{chooser.gpu.name(), gpu::Matmuls::Library(), kSms},
                                      {{ShapeOf(1), {99}}}}}));
    const std::string text = ReadFile(path, 1 << 20);
    CHECK_THROWS_WITH_AS(chooser.Choose(path),
                         (path + ": matmul float [1 x 8] = a [1 x 16] b^T [16 x 8], 2 times: this "
                                 "algorithm cannot be used for it here; remove the file to have it "
                                 "made anew")
                             .c_str(),
                         Error);
    CHECK(ReadFile(path, 1 << 20) == text);
  }

  TEST_CASE("matmul choices: all processes take what process 0 has chosen") {
    const TestFolder folder;
    const std::string path = folder.File("choices.json");
    Chooser first, second;
    std::string told;
    const auto tell = [&](const std::string& mine) {
      if (!mine.empty()) told = mine;
      return told;
    };
    const auto choose = [&](Chooser& chooser, int sms, bool leads) {
      return ChooseMatmulsForAll(path, chooser.products, chooser.gpu, chooser.stream(), sms, leads,
                                 tell, [] {});
    };
    const MatmulChoices chosen = choose(first, kSms, true);
    // The others do not look at the file.
    fs::remove(path);
    CHECK(choose(second, kSms, false) == chosen);
    CHECK(second.Products() == 0);
    CHECK(FileSize(path) == -1);
    CHECK_THROWS_WITH_AS(choose(second, kSms + 1, false),
                         (path + ": process 0 has chosen matrix products for 4 SMs of emulator "
                                 "with loops 1, this process has 5 SMs of emulator with loops 1; "
                                 "use the same GPUs and libraries, or leave --matmul-choices out")
                             .c_str(),
                         Error);
  }

  TEST_CASE("matmul choices: a run and its check compute by them") {
    const TestFolder folder;
    const std::string path = folder.File("choices.json");
    const Model model = SmallGpuModel(0);
    const Dataset dataset = SmallDataset();
    const Plan plan = GpuPlanFor(model, "1f1b", 2, 2, 1, 3, 1);
    // The second algorithm of the emulator everywhere: it sums from the end.
    EmulatedGpu gpu;
    const SmBudget budget = BudgetOf(gpu.sms(), 2, UseOf(plan));
    MatmulChoices choices;
    for (const MatmulShape& shape : ProductsOf(plan, model)) choices[shape] = {1};
    WriteFile(path,
              WriteMatmulFile({{{gpu.name(), gpu::Matmuls::Library(), budget.compute}, choices}}));
    GpuRunOptions options{{.graph = false}};
    options.matmul_choices = path;
    GpuRun run(plan, model, dataset, 1, gpu, options);
    CHECK(run.choices() == choices);
    CHECK(run.ChosenAlgorithms() == DigestOf(choices));
    const StepResult result = run.Step(1);
    const auto difference = [&](const MatmulChoices& by) {
      GpuSerialRun reference(plan, model, dataset, 1, gpu, run.budget(), by);
      return CompareGpuStep(plan, 1, result, run, reference, nullptr).difference;
    };
    CHECK(difference(run.choices()) == "");
    if (!kSanitized) CHECK(difference({}) != "");
  }
}

}  // namespace
}  // namespace contraflow::matmul_choices_test
