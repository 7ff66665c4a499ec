// Published measurements: their data parse, and predictions of them stay as near as they are.

#include "tools/bench/measured.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "compiler/files/file.h"
#include "tests/support/failure.h"
#include "tools/profile/gpus.h"

namespace contraflow::measured_test {
namespace {

const std::string kFolder = CF_TEST_DIR "/../tools/bench/measured";
const std::string kModels = kFolder + "/models";

MeasuredTable TableNamed(const std::string& name) {
  return ReadMeasuredTables(kFolder + "/" + name + ".json").front();
}

/// Mean and worst error, as shares of what was measured.
struct Errors {
  double step = 0, worst_step = 0, memory = 0, worst_memory = 0;
};

Errors ErrorsOf(const MeasuredTable& table) {
  Errors errors;
  int steps = 0, memories = 0;
  const auto add = [](double predicted, double measured, int* count, double* sum, double* worst) {
    const double error = std::abs(predicted / measured - 1);
    ++*count;
    *sum += error;
    *worst = std::max(*worst, error);
  };
  for (const MeasuredRow& row : table.rows) {
    if (!row.left_out.empty()) continue;
    const Predicted predicted = Predict(row, kModels);
    if (row.seconds) {
      add(predicted.seconds, *row.seconds, &steps, &errors.step, &errors.worst_step);
    }
    if (row.bytes) {
      add(predicted.bytes, *row.bytes, &memories, &errors.memory, &errors.worst_memory);
    }
  }
  errors.step /= std::max(1, steps);
  errors.memory /= std::max(1, memories);
  return errors;
}

TEST_SUITE("unit") {
  TEST_CASE("measured: the tables have their rows, each with a figure or a reason") {
    int rows = 0, left_out = 0;
    for (const MeasuredTable& table : ReadMeasuredTables(kFolder)) {
      CAPTURE(table.name);
      CHECK(table.source.find("github.com") == 0);
      for (const MeasuredRow& row : table.rows) {
        CAPTURE(row.name);
        ++rows;
        left_out += row.left_out.empty() ? 0 : 1;
        if (!row.left_out.empty()) continue;
        CHECK((row.seconds || row.bytes));
        CHECK_NOTHROW(FindGpu(row.gpu));
        CHECK_NOTHROW(ReadFile(kModels + "/" + row.model + ".json", 1 << 20));
      }
    }
    CHECK(rows == 119);
    CHECK(left_out == 18);
  }

  TEST_CASE("measured: predictions stay as near as they are") {
    const Errors simumax = ErrorsOf(TableNamed("simumax-b200"));
    CHECK(simumax.step < 0.065);
    CHECK(simumax.worst_step < 0.16);
    CHECK(simumax.memory < 0.04);
    CHECK(simumax.worst_memory < 0.09);
    for (const MeasuredRow& row : TableNamed("megatron-bridge").rows) {
      if (row.name != "llama-70b 26.04.01 h100") continue;
      CHECK(std::abs(Predict(row, kModels).seconds / *row.seconds - 1) < 0.15);
    }
  }

  TEST_CASE("measured: the factor of a row fits its step") {
    const MeasuredTable table = TableNamed("simumax-b200");
    const MeasuredRow& row = table.rows.front();
    const double factor = Calibrate(row, kModels);
    CHECK(factor < 1);
    CHECK(Predict(row, kModels, factor).seconds == doctest::Approx(*row.seconds).epsilon(1e-3));
  }

  TEST_CASE("measured: a table with mistakes is refused, with its place") {
    const auto read = [](const std::string& rows) {
      ReadMeasured(R"({"title": "t", "source": "s", "rows": [)" + rows + "]}", "t.json", "t");
    };
    const auto failure = [&](const std::string& rows) { return Failure([&] { read(rows); }); };
    CHECK_NOTHROW(read(R"({"name": "a", "model": "m", "gpu": "h100", "ms": 1})"));
    CHECK_NOTHROW(read(R"({"name": "a", "left_out": "why"})"));
    CHECK(Contains(failure(R"({"name": "a", "model": "m", "gpu": "h100"})"), "must have a figure"));
    CHECK(Contains(failure(R"({"name": "a", "model": "../m", "gpu": "h100", "ms": 1})"), "model"));
    CHECK(Contains(failure(R"({"name": "a", "model": "m", "gpu": "h100", "gpus": 8, "tp": 3,
                               "ms": 1})"),
                   "multiple of tp x cp x pp"));
    CHECK(Contains(failure(R"({"name": "a", "dtype": "fp4"})"), "t.json: /rows/0/dtype"));
    CHECK(Contains(failure(R"({"name": "a", "pp": 0})"), "t.json: /rows/0/pp"));
    CHECK(Contains(failure(R"({"nmae": "a"})"), "did you mean \"name\""));
  }
}

}  // namespace
}  // namespace contraflow::measured_test
