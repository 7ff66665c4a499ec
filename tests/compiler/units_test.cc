#include "compiler/plan/units.h"

#include <doctest/doctest.h>

#include <string>

#include "compiler/files/cost_io.h"
#include "compiler/plan/text.h"
#include "tests/support/failure.h"

namespace contraflow::units_test {
namespace {

Time Ticks(const std::string& text, Unit unit) {
  return ToTicks(ParseGivenTime(text), unit, "--f");
}

TEST_SUITE("unit") {
  TEST_CASE("a time has a unit of its own, or that of the costs") {
    CHECK(Ticks("6.2ms", Unit::kMicroseconds) == 6'200'000);
    CHECK(Ticks("6.2 ms", Unit::kSeconds) == 6'200'000);
    CHECK(Ticks("6.2", Unit::kMicroseconds) == 6'200);
    CHECK(Ticks("2e-3s", Unit::kMilliseconds) == 2'000'000);
    CHECK(Ticks("0", Unit::kUnit) == 0);
    CHECK(Failure([] { Ticks("6.2ms", Unit::kUnit); }) ==
          "--f: the costs are in an abstract unit, of which no ms are known; give a number alone");
    CHECK(
        Failure([] { Ticks("6.2min", Unit::kSeconds); }) ==
        "must be a time such as 6.2ms, or a number, and units are ns, us, ms and s, is \"6.2min\"");
    for (const char* const wrong : {"", "ms", "x", "nan", "1e400", " 6"}) {
      CAPTURE(wrong);
      CHECK(Failure([&] { Ticks(wrong, Unit::kSeconds); }) ==
            "must be a time such as 6.2ms, or a number, which is in the unit of the costs, is \"" +
                std::string(wrong) + "\"");
    }
    CHECK(Failure([] { Ticks("-1ms", Unit::kSeconds); }) == "--f: must be >= 0");
    CHECK_THROWS_AS(Ticks("6.2 ", Unit::kSeconds), Error);
    CHECK_THROWS_AS(Ticks("6.2  ms", Unit::kSeconds), Error);
  }

  TEST_CASE("a bandwidth is bytes in a unit of the costs") {
    CHECK(ParseBandwidth("25GB/s", Unit::kMicroseconds) == 25'000);
    CHECK(ParseBandwidth("1kB/s", Unit::kSeconds) == 1'000);
    CHECK_THROWS_AS(ParseBandwidth("25GB/s", Unit::kUnit), Error);
    CHECK_THROWS_AS(ParseBandwidth("25GB", Unit::kSeconds), Error);
    CHECK_THROWS_AS(ParseBandwidth("25furlong/s", Unit::kSeconds), Error);
  }

  TEST_CASE("a time reads in the unit that fits, to four digits") {
    const auto text = [](Time ticks) { return FormatWithUnit(ticks, Unit::kMicroseconds); };
    CHECK(text(4'019'999'000) == "4.02 s");
    CHECK(text(326'000'000) == "326 ms");
    CHECK(text(999'960'000) == "1 s");
    CHECK(text(999'940'000) == "999.9 ms");
    CHECK(text(1) == "1 ns");
    CHECK(text(12'345) == "12.35 us");
    CHECK(text(0) == "0 us");
    CHECK(text(-326'000'000) == "-326 ms");
    CHECK(text(123'456'000'000'000) == "123500 s");
    CHECK(FormatWithUnit(66'000'000, Unit::kUnit) == "66 units");
    CHECK(FormatWithUnit(1'234'567'891, Unit::kUnit) == "1234.6 units");
    CHECK(FormatWithUnit(123'456'500'000, Unit::kUnit) == "123457 units");
    CHECK(FormatWithUnit(999'999, Unit::kUnit) == "1 unit");
    CHECK(FormatFigure(66'000'000, Unit::kUnit) == "66");
    CHECK(FormatFigure(1'000'004, Unit::kUnit) == "1");
  }

  TEST_CASE("the times of a table share a unit and a point") {
    const TimeScale scale(4'169'000'000, Unit::kMicroseconds);
    CHECK(scale.Of(4'169'000'000) == "4.169 s");
    CHECK(scale.Of(40'000'000) == "0.040 s");
    CHECK(scale.Of(2'000'000'000) == "2.000 s");
    CHECK(scale.Of(0) == "0 s");
    // A time above 0 never reads as 0.
    CHECK(scale.Of(1'000) == "1 us");
    CHECK(TimeScale(26'000'000, Unit::kUnit).Of(500'000) == "0.5");
    CHECK(TimeScale(1'234'567'891, Unit::kUnit).Of(98'765'432) == "98.8");
    CHECK(TimeScale(1'234'567'891, Unit::kUnit).Of(12'345) == "0.012345");
    CHECK(TimeScale(999'960'000, Unit::kNanoseconds).Of(999'960'000) == "1.000 s");
  }

  TEST_CASE("bytes read in the unit that fits, to three digits") {
    CHECK(FormatBytes(999) == "999 bytes");
    CHECK(FormatBytes(1000) == "1.00 kB");
    CHECK(FormatBytes(999'499) == "999 kB");
    CHECK(FormatBytes(999'500) == "1.00 MB");
    CHECK(FormatBytes(999'700) == "1.00 MB");
    CHECK(FormatBytes(9'996) == "10.0 kB");
    CHECK(FormatBytes(99'960) == "100 kB");
  }

  TEST_CASE("a cost file takes units, and is the same as one with numbers") {
    const CostModel with = ReadCosts(
        R"({"unit": "us", "stage": {"f": "6.2ms", "b": 6200, "w": "0.003 s"},
            "comm": {"latency": "5us", "bytes": "1MB", "bandwidth": "25GB/s"},
            "memory": {"activation_bytes": "4kB", "parameter_bytes": ["1MiB"]}})",
        "costs");
    const CostModel without = ReadCosts(
        R"({"unit": "us", "stage": {"f": 6200, "b": 6200, "w": 3000},
            "comm": {"latency": 5, "bytes": 1000000, "bandwidth": 25000},
            "memory": {"activation_bytes": 4000, "parameter_bytes": [1048576]}})",
        "costs");
    CHECK(with == without);
    CHECK(Failure([] {
            ReadCosts(R"({"unit": "unit", "stage": {"f": "6.2ms", "b": 1, "w": 1}})", "costs");
          }) ==
          "costs: /stage/f: the costs are in an abstract unit, of which no ms are known; give a "
          "number alone");
    CHECK(Failure([] {
            ReadCosts(R"({"unit": "ms", "stage": {"f": "6.2h", "b": 1, "w": 1}})", "costs");
          }) ==
          "costs: /stage/f: must be a time such as 6.2ms, or a number, and units are ns, us, ms "
          "and s, is \"6.2h\"");
  }
}

}  // namespace
}  // namespace contraflow::units_test
