// The short lists of whole numbers that large binary plans are made of.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "compiler/files/json_builder.h"
#include "compiler/files/plan_document.h"
#include "compiler/files/plan_io.h"
#include "tests/support/failure.h"
#include "tests/support/random_plan.h"
#include "tests/support/sanitized.h"

namespace contraflow::packed_instruction_test {
namespace {

/// A plan whose names and programs are these.
std::string Document(const std::string& members) {
  return R"({"format": "contraflow-plan", "version": 1, "schedule": "x", "level": "component",
    "ranks": 2, "stages": 4, "microbatches": 8,
    "routes": [{"ranks": [0,1,1,0], "microbatches": [0,1,2,3,4,5,6,7]}], )" +
         members + "}";
}

const std::string kNames =
    R"("names": [["STEP", "SEND_F", "FB", "F", "ATTN_F"], ["recv", "send"]], )";

std::string Read(const std::string& entry) {
  return Failure([&] { ReadPlan(Document(kNames + "\"programs\": [[" + entry + "], []]"), "p"); });
}

const std::string kPlace = "p";  // a builder keeps neither of the two
constexpr JsonLimits kLimits;

Json Parsed(std::string_view document, size_t piece) {
  JsonBuilder builder(kPlace, kLimits, {});
  if (piece == 0) {
    ReadCbor(document, "p", &builder);
    return builder.Take();
  }
  size_t at = std::min(piece, document.size());
  ReadCbor(
      document.substr(0, at),
      [&](char* to, size_t most) {
        const size_t got = std::min({piece, most, document.size() - at});
        std::memcpy(to, document.data() + at, got);
        at += got;
        return got;
      },
      "p", &builder);
  return builder.Take();
}

/// The document as text, or what is said of it.
std::string Outcome(std::string_view document, size_t piece) {
  std::string text;
  const std::string said = Failure([&] { WriteJson(Parsed(document, piece), &text); });
  return said == "accepted" ? text : said;
}

TEST_SUITE("unit") {
  TEST_CASE("numbers stand for what the document names") {
    const Plan plan = ReadPlan(Document(kNames + R"("programs": [
          [[3, 2, 7], [1, 2, 7, 1], [2, 0, 3, 3, 1], [0, 3], [4, 1, 2, 5]],
          [[1, 0, 0, 1, 9, 8, 1], [3, 1, 1, -1, -1, 0, 0], [3, 1, 1, -1, -1, -1, 0, 1],
           "W s1 m2"]])"),
                               "p");
    std::vector<std::string> texts;
    for (const Program& program : plan.programs) {
      for (const Instruction& i : program) texts.push_back(ToString(i));
    }
    CHECK(texts ==
          std::vector<std::string>{"F s2 m7", "SEND_F s2 m7 to=1", "FB s0 m3 + s3 m1", "STEP s3",
                                   "ATTN_F s1 l2 m5", "SEND_F s0 m0 to=1 group=9 slot=8 lane=send",
                                   "F s1 m1 lane=recv after=0", "F s1 m1 after=0,1", "W s1 m2"});
  }

  TEST_CASE("a list of numbers that is no instruction is refused") {
    const std::string at = "p: /programs/0/0: ";
    CHECK(Read("[]") == at + "instruction []: the operation is missing");
    CHECK(Read("[5,0,0]") == at + "instruction [5,0,0]: the operation must be in 0..4, is 5");
    CHECK(Read("[3,0]") == at + "instruction [3,0]: the micro-batch is missing");
    CHECK(Read("[3,-1,0]") ==
          at + "instruction [3,-1,0]: the stage must be in 0..2147483647, is -1");
    CHECK(Read("[3,0,2147483648]") == at + "instruction [3,0,2147483648]: the micro-batch must be "
                                           "in 0..2147483647, is 2147483648");
    CHECK(Read("[4,0,32768,0]") ==
          at + "instruction [4,0,32768,0]: the layer must be in 0..32767, is 32768");
    CHECK(Read("[3,0,0,-1]") ==
          at + "instruction [3,0,0,-1]: ends with -1; leave out what it does not have");
    CHECK(Read("[3,0,0,-2,1]") ==
          at + "instruction [3,0,0,-2,1]: the group must be in -1..2147483647, is -2");
    CHECK(Read("[3,0,0,-1,-1,2]") ==
          at + "instruction [3,0,0,-1,-1,2]: the lane must be in -1..1, is 2");
    CHECK(Read("[3,0,0,-1,-1,-1,1,1]") ==
          at + "instruction [3,0,0,-1,-1,-1,1,1]: the next of \"after\" (ascending) must be in "
               "2..2147483647, is 1");
    CHECK(Contains(Read("[3,0,0,-1,-1,-1,0,1,2,3,4,5,6]"), "\"after\" has more than 6 entries"));
    CHECK(Read("[3,7,0]") == at + "instruction \"F s7 m0\": the stage must be in 0..3, is 7");
    CHECK(Read("[3,0,1.5]") == "p: /programs/0/0/2: must be a whole number");
    CHECK(Read("[3,\"x\"]") == "p: /programs/0/0/1: must be a whole number");
    CHECK(Read("[3,[0]]") == "p: /programs/0/0/1: must be a whole number");
    CHECK(Read("[3,{}]") == "p: /programs/0/0/1: must be a whole number");
    CHECK(Read("7") == "p: /programs/0/0: must be a string");
    std::string long_list = "[0";
    for (size_t i = 0; i < kMaxRowIntegers; ++i) long_list += ",0";
    CHECK(Read(long_list + "]") == "p: /programs/0/0/32: more than 32 numbers");
  }

  TEST_CASE("names that are unknown or twice or late are refused") {
    const auto read = [](const std::string& members) {
      return Failure([&] { ReadPlan(Document(members), "p"); });
    };
    const std::string programs = R"("programs": [[[0, 0, 0]], []])";
    CHECK(read(R"("names": [["F", "X"]], )" + programs) ==
          "p: /names/0/1: unknown operation \"X\"");
    CHECK(read(R"("names": [["F", "B", "F"]], )" + programs) ==
          "p: /names/0/2: operation \"F\" is named twice");
    CHECK(read(R"("names": [["F"], ["up"]], )" + programs) == "p: /names/1/0: unknown lane \"up\"");
    CHECK(read(R"("names": [["F"], [], []], )" + programs) == "p: /names: more than two lists");
    const std::string late =
        "p: /programs/0/0: instruction [0,0,0]: the document must give the names before it, see "
        "\"names\", to say what the operation stands for";
    CHECK(read(programs) == late);
    CHECK(read(programs + R"(, "names": [["F"]])") == late);
    CHECK(read(R"("names": [["F"]], "programs": [[[0, 0, 0, -1, -1, 0]], []])") ==
          "p: /programs/0/0: instruction [0,0,0,-1,-1,0]: the document must give the names before "
          "it, see \"names\", to say what the lane stands for");
    CHECK(read(R"("names": [["F"]], )" + programs) == "accepted");
  }

  TEST_CASE("binary plans with instructions as text are read still") {
    std::mt19937_64 random(17);
    for (int i = 0; i < 50; ++i) {
      const Plan plan = RandomPlan(&random);
      std::string binary;
      WriteCbor(*ParseJson(WritePlan(plan), "p", {.values = size_t{1} << 20}).value, &binary);
      CHECK(ReadPlan(binary, "p") == plan);
      CHECK(WritePlanBinary(plan).size() <= binary.size() + 400);
    }
  }
}

TEST_SUITE("property") {
  TEST_CASE("a document in pieces reads as one at once") {
    std::mt19937_64 random(19);
    int refused = 0;
    for (int i = 0; i < CasesToDraw(300); ++i) {
      std::string document = WritePlanBinary(RandomPlan(&random));
      if (i % 2 == 0) document[random() % document.size()] = static_cast<char>(random());
      if (i % 5 == 0) document.resize(random() % document.size());
      const std::string whole = Outcome(document, 0);
      refused += whole[0] == 'p' ? 1 : 0;
      for (const size_t piece : {size_t{1}, size_t{2}, 3 + random() % 60}) {
        CAPTURE(piece);
        CHECK(Outcome(document, piece) == whole);
      }
    }
    CHECK((kSanitized || refused > 50));
    CHECK(refused < 250);
  }

  TEST_CASE("a number is read alike in a list and anywhere") {
    // The same lists in rows, which take the short way, and through a list without a size.
    std::mt19937_64 random(23);
    std::vector<std::vector<int64_t>> seen;
    const auto take = [&](size_t, size_t, std::span<const int64_t> integers) {
      seen.emplace_back(integers.begin(), integers.end());
    };
    const JsonRows rows[] = {{"r", [](size_t) {}, [](size_t, size_t, std::string_view) {}, take}};
    for (int i = 0; i < CasesToDraw(500); ++i) {
      std::vector<int64_t> wanted;
      std::string short_way, long_way;
      const size_t size = random() % (kMaxRowIntegers + 1);
      BeginCborArray(size, &short_way);
      long_way += '\x9F';
      for (size_t k = 0; k < size; ++k) {
        const auto integer = static_cast<int64_t>(random() >> random() % 64);
        wanted.push_back(random() % 4 == 0 ? -1 - (integer & INT64_MAX) : integer & INT64_MAX);
        WriteCborInteger(wanted.back(), &short_way);
        WriteCborInteger(wanted.back(), &long_way);
      }
      long_way += '\xFF';
      seen.clear();
      for (const std::string& list : {short_way, long_way}) {
        const std::string document = "\xA1\x61r\x81\x81" + list;
        JsonBuilder builder(kPlace, kLimits, rows);
        ReadCbor(document, "p", &builder);
      }
      CHECK(seen == std::vector<std::vector<int64_t>>{wanted, wanted});
    }
  }
}

}  // namespace
}  // namespace contraflow::packed_instruction_test
