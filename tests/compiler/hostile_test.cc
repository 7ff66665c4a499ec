// Documents made to break a reader: whatever comes in, a value or an Error comes out.

#include <doctest/doctest.h>

#include <cctype>
#include <functional>
#include <random>
#include <vector>

#include "compiler/files/cost_io.h"
#include "compiler/files/plan_io.h"
#include "tests/support/failure.h"
#include "tests/support/random_plan.h"
#include "tests/support/sanitized.h"

namespace contraflow::hostile_test {
namespace {

/// A plan with every kind of member, as text.
Plan FullPlan() {
  std::mt19937_64 random(3);
  for (;;) {
    Plan plan = RandomPlan(&random);
    if (plan.costs && plan.costs->memory && plan.costs->stages.size() > 1 &&
        plan.data_parallel > 1 && InstructionCount(plan) > 5 && InstructionCount(plan) < 25) {
      return plan;
    }
  }
}

std::string Read(const std::string& document) {
  return Failure([&] { ReadPlan(document, "p"); });
}

/// A message that begins with the place and says something.
bool IsClear(const std::string& message) {
  return message.size() > 5 && message.size() < 2000 && message[0] == 'p' && message[1] == ':';
}

/// Begin and end of each JSON value of the text, found without a parser: scalars, strings, and
/// brackets with what they enclose.
std::vector<std::pair<size_t, size_t>> Values(const std::string& text) {
  std::vector<std::pair<size_t, size_t>> values;
  std::vector<size_t> open;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '[' || c == '{') {
      open.push_back(i);
    } else if (c == ']' || c == '}') {
      values.emplace_back(open.back(), i + 1);
      open.pop_back();
    } else if (c == '"') {
      const size_t begin = i;
      while (text[++i] != '"') i += text[i] == '\\' ? 1 : 0;
      values.emplace_back(begin, i + 1);
    } else if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      const size_t begin = i;
      while (std::isdigit(static_cast<unsigned char>(text[i])) != 0 || text[i] == '.') ++i;
      values.emplace_back(begin, i--);
    }
  }
  return values;
}

TEST_SUITE("unit") {
  TEST_CASE("a plan cut off anywhere is refused") {
    const Plan plan = FullPlan();
    const std::string text = WritePlan(plan), binary = WritePlanBinary(plan);
    for (size_t size = 0; size + 2 <= text.size(); ++size) {
      CAPTURE(size);
      CHECK(IsClear(Read(text.substr(0, size))));
    }
    for (size_t size = 0; size < binary.size(); ++size) {
      CAPTURE(size);
      CHECK(IsClear(Read(binary.substr(0, size))));
    }
    CHECK(Read(text) == "accepted");
    CHECK(Read(binary) == "accepted");
  }

  TEST_CASE("a cost file cut off anywhere is refused") {
    const std::string text = WriteCosts(*FullPlan().costs);
    for (size_t size = 0; size + 2 <= text.size(); ++size) {
      CAPTURE(size);
      CHECK(IsClear(Failure([&] { ReadCosts(text.substr(0, size), "p"); })));
    }
  }

  TEST_CASE("a value of the wrong type anywhere is refused") {
    const std::string text = WritePlan(FullPlan());
    const std::vector<std::pair<size_t, size_t>> values = Values(text);
    REQUIRE(values.size() > 60);
    int refused = 0;
    for (const auto& [begin, end] : values) {
      const std::string old = text.substr(begin, end - begin);
      for (const std::string wrong :
           {"null", "true", "-1", "1e18", "1000000000000000000", "1e999", "99999999999999999999999",
            "\"\"", "\"\\u0000\"", "[]", "{}", "[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]"}) {
        std::string changed = text;
        changed.replace(begin, end - begin, wrong);
        CAPTURE(old);
        CAPTURE(wrong);
        const std::string message = Read(changed);
        // A few are right after all: the time 1e18 is none, but a program [] is a program.
        if (message == "accepted") {
          CHECK((wrong == "[]" || (wrong == "\"\"" && old[0] == '"')));
        } else {
          CHECK(IsClear(message));
          ++refused;
        }
      }
    }
    CHECK(refused > 600);
  }

  TEST_CASE("counts without content and content without end cost nothing") {
    const std::string head =
        R"({"format": "contraflow-plan", "version": 1, "schedule": "x", "level": "comm", )";
    const std::string sizes = R"("ranks": 16384, "stages": 32768, "microbatches": 4096, )";
    CHECK(Read(head + sizes + R"("routes": [], "programs": []})") ==
          "p: /routes: must have 1..4096 routes (at most one for each micro-batch), has 0");
    CHECK(
        Read(head + sizes + R"("routes": [{"ranks": [], "microbatches": []}], "programs": []})") ==
        "p: /routes/0/ranks: must have 32768 entries, one for each stage, has 0");
    const std::string one = head + R"("ranks": 1, "stages": 1, "microbatches": 1,
                  "routes": [{"ranks": [0], "microbatches": [0]}], "programs": [)";
    std::string many = one;
    for (int i = 0; i < 20000; ++i) many += i == 0 ? "[]" : ",[]";
    CHECK(Read(many + "]}") == "p: /programs: more than 16384 programs");
    many = one + "[\"F s0 m0\"";
    for (int i = 0; i < 100000; ++i) many += ",\"F s0 m0\"";
    CHECK(Read(many + "]]}") ==
          "p: /programs/0: has 100001 instructions, more than 10, all there can be for 1 stages "
          "and 1 micro-batches");
    many = head + "\"routes\": [[0";
    for (int i = 0; i < (1 << 22); ++i) many += ",0";
    CHECK(Read(many + "]]}") ==
          "p: /routes/0/4194300: the document holds more than 4194304 values, the limit for its "
          "kind");
  }
}

TEST_SUITE("property") {
  TEST_CASE("random damage to a document gives a plan or an Error") {
    std::mt19937_64 random(11);
    int accepted = 0, refused = 0;
    for (int i = 0; i < CasesToDraw(3000); ++i) {
      const Plan plan = RandomPlan(&random);
      std::string document = i % 2 == 0 ? WritePlan(plan) : WritePlanBinary(plan);
      const std::string whole = document;
      for (auto edits = 1 + random() % 2; edits > 0; --edits) {
        const size_t at = random() % document.size();
        switch (random() % 5) {
          case 0:
            document[at] = static_cast<char>(random());
            break;
          case 1:
            document.erase(at, 1 + random() % 8);
            break;
          case 2:
            document.insert(at, 1, static_cast<char>(random()));
            break;
          case 3:
            document.insert(at, whole.substr(random() % whole.size(), random() % 40));
            break;
          default:  // Another digit: the damage that is hardest to see.
            if (const size_t digit = document.find_first_of("0123456789", at);
                digit != std::string::npos) {
              document[digit] = static_cast<char>('0' + random() % 10);
            }
        }
        if (document.empty()) document = " ";
      }
      CAPTURE(i);
      CAPTURE(document);
      try {
        const Plan read = ReadPlan(document, "p");
        CHECK(ReadPlan(WritePlan(read), "p") == read);
        ++accepted;
      } catch (const Error& error) {
        CHECK(IsClear(error.what()));
        ++refused;
      }
    }
    CHECK((kSanitized || accepted > 100));
    CHECK((kSanitized || refused > 1000));
  }
}

}  // namespace
}  // namespace contraflow::hostile_test
