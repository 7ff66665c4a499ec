#include "compiler/plan/spec.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>

#include "compiler/plan/units.h"
#include "tests/support/failure.h"

namespace contraflow::spec_test {
namespace {

Spec Good() {
  Spec spec;
  spec.ranks = 8;
  spec.microbatches = 20;
  spec.costs = UniformCosts(1, 1, 1);
  return spec;
}

TEST_SUITE("unit") {
  TEST_CASE("sizes out of range name the flag the value and the range") {
    const struct {
      int ranks, microbatches, chunks, data_parallel;
      std::string message;
    } rows[] = {
        {8, 20, 0, 1, "accepted"},
        {1, 1, 1, 1, "accepted"},
        {16384, 4096, 2, 1, "accepted"},
        {0, 20, 0, 1, "`ranks`: must be in 1..16384, is 0"},
        {-1, 20, 0, 1, "`ranks`: must be in 1..16384, is -1"},
        {1000000000, 20, 0, 1, "`ranks`: must be in 1..16384, is 1000000000"},
        {8, 0, 0, 1, "`microbatches`: must be in 1..1048576, is 0"},
        {8, -5, 0, 1, "`microbatches`: must be in 1..1048576, is -5"},
        {8, 1000000000, 0, 1, "`microbatches`: must be in 1..1048576, is 1000000000"},
        {8, 20, -1, 1, "`chunks`: must be in 1..32768, is -1"},
        {8, 20, 1000000000, 1, "`chunks`: must be in 1..32768, is 1000000000"},
        {8, 20, 0, 0, "`data_parallel`: must be in 1..16384, is 0"},
        {16384, 1, 3, 1,
         "`ranks` 16384 with `chunks` 3: makes 49152 stages, at most 32768 are supported"},
        {16384, 1048576, 0, 1,
         "`ranks` 16384 and `microbatches` 1048576: makes 17179869184 cells (stages * "
         "micro-batches), at most 134217728 are supported"},
        {64, 1048576, 4, 1,
         "`ranks` 64 with `chunks` 4 and `microbatches` 1048576: makes 268435456 cells (stages * "
         "micro-batches), at most 134217728 are supported"},
    };
    for (const auto& row : rows) {
      Spec spec = Good();
      spec.ranks = row.ranks;
      spec.microbatches = row.microbatches;
      spec.chunks = row.chunks;
      spec.data_parallel = row.data_parallel;
      CHECK(Failure([&] { CheckSpec(spec); }) == row.message);
    }
    Spec spec = Good();
    for (const int members : {0, 1025}) {
      spec.expert_parallel = members;
      CHECK(Failure([&] { CheckSpec(spec); }) ==
            "`expert_parallel`: must be in 1..1024, is " + std::to_string(members));
    }
    spec.expert_parallel = 1024;
    CHECK(Failure([&] { CheckSpec(spec); }) == "accepted");
    spec.expert_parallel = 4;
    spec.costs.parallel = {.ep = 8};
    CHECK(Failure([&] { CheckSpec(spec); }) ==
          "`expert_parallel`: is 4, the costs are of ep 8; leave it out, or give costs of ep 4");
    for (const std::optional<int> members : {std::optional<int>(8), std::optional<int>()}) {
      spec.expert_parallel = members;
      CHECK(Failure([&] { CheckSpec(spec); }) == "accepted");
      CHECK(ParallelOf(spec).ep == 8);
    }
    spec.memory_limit = 0;
    CHECK(Failure([&] { CheckSpec(spec); }) ==
          "`memory_limit`: must be in 1..4611686018427387904, is 0");
  }

  TEST_CASE("a memory limit is bytes or a multiple of 1F1B's fullest rank") {
    Spec spec = Good();
    CHECK(ParseMemoryLimit("123456", spec, 8) == 123456);
    // Without memory costs the limit counts activations: P of a whole rank.
    CHECK(ParseMemoryLimit("1x", spec, 8) == 8);
    // All activations are a limit; one more must mean something else.
    Spec many = spec;
    many.microbatches = 500'000;
    CHECK(ParseMemoryLimit("4000000", many, 8) == 4'000'000);
    CHECK(Failure([&] { ParseMemoryLimit("4000001", many, 8); }) != "accepted");
    CHECK(ParseMemoryLimit("1.5x", spec, 8) == 12);
    CHECK(ParseMemoryLimit("0.99x", spec, 8) == 7);
    spec.costs.memory = MemoryCost{.activation_bytes = 1000};
    CHECK(ParseMemoryLimit("1x", spec, 8) == 8000);
    CHECK(ParseMemoryLimit("123456789012", spec, 8) == 123456789012);
    CHECK(ParseMemoryLimit("37.5GiB", spec, 8) == 40265318400);
    // Two stages a rank: a whole rank's activation is that of both.
    CHECK(ParseMemoryLimit("2x", spec, 16) == 32000);
  }

  TEST_CASE("a malformed memory limit is refused") {
    const std::string form =
        "`memory_limit`: must be a number of bytes, or N times what 1F1B's fullest rank holds as "
        "\"Nx\", is ";
    const std::string most = "`memory_limit`: must be at most 4611686018427387904, is ";
    const struct {
      std::string text, message;
    } rows[] = {
        {"", form + "\"\""},
        {"x", form + "\"x\""},
        {"nanx", form + "\"nanx\""},
        {"infx", form + "\"infx\""},
        {"1e3x", form + "\"1e3x\""},
        {"1 x", form + "\"1 x\""},
        {"0x10", form + "\"0x10\""},
        {"80gb", form + "\"80gb\""},
        {"80GB",
         "`memory_limit`: counts activations, since the costs give no \"activation_bytes\", and "
         "there are 160; for bytes, give costs that do, is \"80GB\""},
        {"80000000000",
         "`memory_limit`: counts activations, since the costs give no \"activation_bytes\", and "
         "there are 160; for bytes, give costs that do, is \"80000000000\""},
        {"1.5", "`memory_limit`: needs a unit (did you mean \"1.5x\"?), is \"1.5\""},
        {"0.3", "`memory_limit`: needs a unit (did you mean \"0.3x\"?), is \"0.3\""},
        {"1e1", "`memory_limit`: must be a whole number of activations, is \"1e1\""},
        {"+1", form + "\"+1\""},
        {"0", "`memory_limit`: must be positive, is \"0\""},
        {"-1", "`memory_limit`: must be positive, is \"-1\""},
        {"0x", "`memory_limit`: must be positive, is \"0x\""},
        {"-1x", "`memory_limit`: must be positive, is \"-1x\""},
        {"0.01x", "`memory_limit`: must leave room for at least one activation, is \"0.01x\""},
        {"4611686018427387905", most + "\"4611686018427387905\""},
        {"99999999999999999999", most + "\"99999999999999999999\""},
        {"9999999999999999999x",
         "`memory_limit`: must come to at most 4611686018427387904 bytes, is "
         "\"9999999999999999999x\""},
    };
    for (const auto& row : rows) {
      CAPTURE(row.text);
      CHECK(Failure([&] { ParseMemoryLimit(row.text, Good(), 8); }) == row.message);
    }
  }

  TEST_CASE("a short number is not taken for bytes where activations have thousands") {
    Spec spec = Good();
    spec.costs.memory.emplace().activation_bytes = 8000;
    CHECK(ParseMemoryLimit("9", spec, 8) == 9);
    for (const char* few : {"8", "1", "007"}) {
      CAPTURE(few);
      CHECK(LacksUnit(few, spec.costs));
      CHECK(Contains(Failure([&] { ParseMemoryLimit(few, spec, 8); }),
                     "did you mean \"" + std::string(few) + "x\" or"));
    }
    for (const char* enough : {"9", "8B", "8e0", "8GB", "8x"}) {
      CAPTURE(enough);
      CHECK_FALSE(LacksUnit(enough, spec.costs));
    }
    CHECK(Contains(Failure([&] { ParseMemoryLimit("0.6", spec, 8); }), "\"0.6x\""));
    CHECK(ParseBytes("80G", "") == 80'000'000'000);
    CHECK(ParseBytes("1.5M", "") == 1'500'000);
    CHECK_FALSE(LacksUnit("8", Good().costs));
  }
}

}  // namespace
}  // namespace contraflow::spec_test
