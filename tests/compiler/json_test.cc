#include "compiler/files/json.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <type_traits>

#include "compiler/files/json_builder.h"
#include "compiler/plan/text.h"
#include "tests/support/failure.h"
#include "tests/support/sanitized.h"

namespace contraflow::json_test {
namespace {

using std::string_literals::operator""s;

std::string Parse(std::string_view text, const JsonLimits& limits = {}) {
  return Failure([&] { ParseJson(text, "f.json", limits); });
}

/// The document as WriteJson prints it.
std::string Reprint(std::string_view document) {
  std::string out;
  WriteJson(*ParseJson(document, "f.json").value, &out);
  return out;
}

std::string Repeat(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

// A builder keeps references to its place and its limits, so it takes no temporaries.
template <typename Place, typename Limits>
constexpr bool kBuilds =
    std::is_constructible_v<JsonBuilder, Place, Limits, std::span<const JsonRows>>;
static_assert(kBuilds<const std::string&, const JsonLimits&>);
static_assert(!kBuilds<std::string, const JsonLimits&>);
static_assert(!kBuilds<const char*, const JsonLimits&>);
static_assert(!kBuilds<const std::string&, JsonLimits>);
static_assert(!kBuilds<std::string, JsonLimits>);

TEST_SUITE("unit") {
  TEST_CASE("what is not JSON is refused with line and column") {
    const struct {
      std::string text, message;
    } rows[] = {
        {"", "f.json: is empty; it must hold a JSON document"},
        {"{\n \"a\": 1,\n}", "f.json:3:1: not valid JSON: unexpected '}'; expected string literal"},
        {"{\"a\": 1} x", "f.json:1:10: not valid JSON: invalid literal; expected end of input"},
        {"{\"a\": 1}{}", "f.json:1:9: not valid JSON: unexpected '{'; expected end of input"},
        {"{\"a\": NaN}", "f.json:1:7: not valid JSON: invalid literal"},
        {"{\"a\": -Infinity}",
         "f.json:1:8: not valid JSON: invalid number; expected digit after '-'"},
        {"{\"a\": 01}", "f.json:1:8: not valid JSON: unexpected number literal; expected '}'"},
        {"{\"a\": 1e999}", "f.json:1:11: not valid JSON: number overflow parsing '1e999'"},
        {"{\"a\": \"\xC3(\"}", "f.json:1:9: not valid JSON: invalid string: ill-formed UTF-8 byte"},
        {"// x\n{}", "f.json:1:1: not valid JSON: invalid literal"},
        {"{\"a\": [1, 2",
         "f.json:1:12: not valid JSON: unexpected end of input; expected ']'; the document ends "
         "here; was it truncated?"},
        {"\xFF\xFE{", "f.json:1:1: not valid JSON: invalid literal"},
    };
    for (const auto& row : rows) {
      CAPTURE(row.text);
      CHECK(Parse(row.text) == row.message);
    }
  }

  TEST_CASE("text leaves the program without what steers a terminal or is no character of XML") {
    const struct {
      std::string text, plain, quoted;
    } rows[] = {
        {"a\nb", "a\nb", R"("a\nb")"},
        {"\x1B[2J\a\r\t\x7F", R"(\u001b[2J\u0007\u000d\t\u007f)",
         R"("\u001b[2J\u0007\u000d\t\u007f")"},
        // CSI of C1, an override and an isolate, an Arabic mark, a line separator.
        {"\xC2\x9B\xE2\x80\xAE\xE2\x81\xA6\xD8\x9C\xE2\x80\xA8",
         R"(\u009b\u202e\u2066\u061c\u2028)", R"("\u009b\u202e\u2066\u061c\u2028")"},
        // Noncharacters, of 4 bytes too.
        {"\xEF\xBF\xBE\xEF\xBF\xBF\xEF\xB7\x90\xF0\x9F\xBF\xBE",
         R"(\ufffe\uffff\ufdd0\ud83f\udffe)", R"("\ufffe\uffff\ufdd0\ud83f\udffe")"},
        // No UTF-8: a byte alone, an overlong form, a surrogate, an end.
        {"\x9B\xC0\xAF\xED\xA0\x80\xE2\x82", R"(\x9b\xc0\xaf\xed\xa0\x80\xe2\x82)",
         R"("\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd")"},
        {"\xC3\xA9 \xE4\xB8\xAD \xF0\x9F\x98\x80 \xD7\xA9\\\"",
         "\xC3\xA9 \xE4\xB8\xAD \xF0\x9F\x98\x80 \xD7\xA9\\\"",
         "\"\xC3\xA9 \xE4\xB8\xAD \xF0\x9F\x98\x80 \xD7\xA9\\\\\\\"\""},
    };
    for (const auto& row : rows) {
      CAPTURE(row.plain);
      CHECK(PlainText(row.text) == row.plain);
      CHECK(PlainText(row.plain) == row.plain);
      CHECK(QuoteJson(row.text) == row.quoted);
      CHECK(!Contains(PlainLine(row.text), "\n"));
      // It comes back as it was, where JSON can say it, and no text of a file may have it.
      const bool utf8 = !Contains(row.quoted, "ufffd");
      const JsonDocument document = ParseJson("{\"a\": " + row.quoted + "}", "f.json");
      if (utf8) CHECK((*document.value)["a"].get<std::string>() == row.text);
      if (!utf8 || (row.plain == row.text && row.text != "a\nb")) continue;
      CHECK(Failure([&] {
              document.Root().Required("a").String("a name");
            }).starts_with("f.json: /a: must have no control characters, is "));
    }
  }

  TEST_CASE("comments are spaces where they are taken and nowhere else") {
    const JsonLimits commented = {.values = 4, .comments = true};
    const auto value = [&](const std::string& text) {
      std::string out;
      WriteJson(*ParseJson(text, "f.json", commented).value, &out);
      return out;
    };
    CHECK(value("// a\n/* b */{/**/\"a\"// c\r\n:/* \n*\n */1,//\n\"b\":[2/***/]}//") ==
          "{\"a\": 1, \"b\": [2]}");
    CHECK(value("{\"a // b\": \"/* c */\"}") == "{\"a // b\": \"/* c */\"}");
    CHECK(value(Repeat("/**/\n//\n", 100000) + "[]") == "[]");
    const std::string end = "; the document ends here; was it truncated?";
    const std::string unclosed =
        ": not valid JSON: invalid comment; missing closing '*/'; expected ";
    const std::string slash =
        ": not valid JSON: invalid comment; expecting '/' or '*' after '/'; expected ";
    const struct {
      std::string text, message;
    } rows[] = {
        {"{} /* x", "f.json:1:8" + unclosed + "end of input" + end},
        {"{\"a\": 1 /* *\n\n/", "f.json:3:2" + unclosed + "'}'" + end},
        {"{} /", "f.json:1:5" + slash + "end of input" + end},
        {"{/x\"a\": 1}", "f.json:1:3" + slash + "string literal"},
        {"/* /* */ */ {}", "f.json:1:10: not valid JSON: invalid literal"},
        {"{\"a\": 1 # x\n}", "f.json:1:9: not valid JSON: invalid literal; expected '}'"},
        {"{\"a\": 1/**/2}", "f.json:1:12: not valid JSON: unexpected number literal; expected '}'"},
        {"// {}",
         "f.json:1:6: not valid JSON: unexpected end of input; expected '[', '{', or a literal" +
             end},
        {"[1,2,/*3*/3,4]", "f.json: the document holds more than 4 values, the limit for its kind"},
    };
    for (const auto& row : rows) {
      CAPTURE(row.text);
      CHECK(Parse(row.text, commented) == row.message);
    }
    CHECK(Parse("{} // x") == "f.json:1:4: not valid JSON: invalid literal; expected end of input");
    CHECK(Parse("{/**/}") ==
          "f.json:1:2: not valid JSON: invalid literal; expected string literal");
  }

  TEST_CASE("a message quotes no more than a line of the document") {
    for (const std::string& text :
         {"{\"a\": 1" + std::string(1000, '0') + "e9}", "{\"a\": " + std::string(1000, '1') + "}",
          "{\"a\": 0." + std::string(1000, '0') + "1}", "[" + std::string(1000, 'x') + "]"}) {
      CHECK(Failure([&] { ParseJson(text, "f"); }).size() < 300);
    }
  }

  TEST_CASE("what JSON allows and we do not is refused with its path") {
    const struct {
      std::string text, message;
    } rows[] = {
        {"{\"a\": 1, \"a\": 1}", "f.json: /a: is given twice; keep one"},
        {"{\"a\": [{\"b~/c\": 1, \"b~/c\": 1}]}", "f.json: /a/0/b~0~1c: is given twice; keep one"},
        {"{\"a\": 9223372036854775808}", "f.json: /a: an integer out of 64 bits"},
        {"{\"a\": [0, -9223372036854775809]}", "f.json: /a/1: an integer out of 64 bits"},
        {"{\"a\": 100000000000000000000000}", "f.json: /a: an integer out of 64 bits"},
        {"{\"a\": 1e-999}", "f.json: /a: the number \"1e-999\" is too close to 0"},
        {Repeat("[", 17), "f.json: " + Repeat("/0", 16) + ": nested more than 16 levels deep"},
        {Repeat("[", 1000000), "f.json: " + Repeat("/0", 16) + ": nested more than 16 levels deep"},
        {Repeat("{\"a\":", 100000),
         "f.json: " + Repeat("/a", 16) + ": nested more than 16 levels deep"},
        {"{\"" + Repeat("x", 129) + "\": 1}",
         "f.json: /: a key of 129 bytes; no key has more than 128"},
    };
    for (const auto& row : rows) {
      CAPTURE(row.text.substr(0, 80));
      CHECK(Parse(row.text) == row.message);
    }
    CHECK(Parse("[1,2,3]", {.values = 3}) ==
          "f.json: the document holds more than 3 values, the limit for its kind");
    CHECK(Parse("[1,2,3]", {.bytes = 6}) == "f.json: has 7 bytes; at most 6 are read");
    std::string many = "{\"k\": 0";
    for (int i = 0; i < 64; ++i) many += ", \"k" + std::to_string(i) + "\": 0";
    CHECK(Parse(many + "}") == "f.json: /k63: an object with more than 64 keys");
    CHECK(Parse(many + "}", {.members = 65}) == "accepted");
  }

  TEST_CASE("values keep their kind and print in one layout") {
    CHECK(Reprint("{\"a\":1,\"b\":[1,2.5,-3],\"c\":[{\"x\":null},{\"y\":true}]}") ==
          "{\"a\": 1, \"b\": [1,2.5,-3], \"c\": [{\"x\": null},\n" + std::string(32, ' ') +
              "{\"y\": true}]}");
    CHECK(Reprint("[9223372036854775807,-9223372036854775808,1e22,0.1,1E+2]") ==
          "[9223372036854775807,-9223372036854775808,1e+22,0.1,100]");
    CHECK(Reprint("\xEF\xBB\xBF[\"\\u00e9\\n\\\"\\u0001\"]") == "[\"\xC3\xA9\\n\\\"\\u0001\"]");
    CHECK(FormatReal(std::numeric_limits<double>::denorm_min()) == "5e-324");
  }

  TEST_CASE("fields are read with the place the range and what stands there") {
    const JsonDocument document = ParseJson(
        R"({"rank": 9, "half": 1.5, "whole": 2.0, "big": 9007199254740993, "text": "a\u001bb",
            "list": [1, "x", 3], "none": null, "yes": true, "object": {"alpha": 1}})",
        "p.json");
    const JsonCursor root = document.Root();
    const auto at = [&root](const char* key) { return root.Required(key); };
    const struct {
      std::string message, got;
    } rows[] = {
        {"p.json: /rank: must be a rank in 0..7, is 9",
         Failure([&] { at("rank").Integer("a rank", 0, 7); })},
        {"p.json: /half: must be a rank in 0..7, is 1.5",
         Failure([&] { at("half").Integer("a rank", 0, 7); })},
        {"p.json: /whole: must be a rank in 0..7, is 2.0",
         Failure([&] { at("whole").Integer("a rank", 0, 7); })},
        {"p.json: /none: must be a rank in 0..7, is null",
         Failure([&] { at("none").Integer("a rank", 0, 7); })},
        {"p.json: /yes: must be a rank in 0..7, is true",
         Failure([&] { at("yes").Integer("a rank", 0, 7); })},
        {"p.json: /list/1: must be a rank in 0..7, is \"x\"",
         Failure([&] { at("list").Integers("a rank", 0, 7, 3); })},
        {"p.json: /list/2: must be a rank in 0..2, is 3",
         Failure([&] { at("list").Item(2).Integer("a rank", 0, 2); })},
        {"p.json: /list: must have at most 2 entries, has 3",
         Failure([&] { at("list").Integers("a rank", 0, 7, 2); })},
        {"p.json: /rank: must be an array, is 9",
         Failure([&] { at("rank").Integers("a rank", 0, 7, 2); })},
        {"p.json: /half: must be a rate in 0..1, is 1.5",
         Failure([&] { at("half").Number("a rate", 0, 1); })},
        {"p.json: /list: must be a rate in 0..1, is an array",
         Failure([&] { at("list").Number("a rate", 0, 1); })},
        {"p.json: /object: must be a number, is an object",
         Failure([&] { at("object").Number("a number"); })},
        {"p.json: /big: the integer 9007199254740993 is too large to be kept exactly",
         Failure([&] { at("big").Number("a number"); })},
        {"p.json: /rank: must be a name in quotes, is 9",
         Failure([&] { at("rank").String("a name"); })},
        {"p.json: /text: must have no control characters, is \"a\\u001bb\"",
         Failure([&] { at("text").String("a name"); })},
        {"p.json: /text: must have at most 2 bytes, has 3",
         Failure([&] { at("text").String("a name", 2); })},
        {"p.json: /rank: must be a switch, true or false, is 9",
         Failure([&] { at("rank").Boolean("a switch"); })},
        {"p.json: /object: unknown key \"alpha\" (did you mean \"alphas\"?); known are: alphas, "
         "beta",
         Failure([&] {
           at("object").Keys("an object", {"alphas", "beta"});
         })},
        {"p.json: /list: must be an object, is an array",
         Failure([&] { at("list").Keys("an object", {}); })},
        {"p.json: /object: the key \"beta\" is missing; add it",
         Failure([&] { at("object").Required("beta"); })},
        {"p.json: /list: must be an object, is an array",
         Failure([&] { at("list").Required("beta"); })},
    };
    for (const auto& row : rows) CHECK(row.got == row.message);
    CHECK(at("rank").Integer("a rank", 0, 9) == 9);
    CHECK(at("whole").Number("a number", 2, 2) == 2);
    CHECK(at("yes").Boolean("a switch"));
    CHECK(ParseJson("[1,2,3]", "p").Root().Integers("x", 1, 3, 3) == std::vector<int>{1, 2, 3});
    CHECK_FALSE(root.Optional("absent"));
  }

  TEST_CASE("rows are handed over while the document is read") {
    std::string seen;
    const JsonRows rows = {"rows", [&](size_t row) { seen += "|" + std::to_string(row); },
                           [&](size_t, size_t index, std::string_view text) {
                             seen += " " + std::to_string(index) + std::string(text);
                           }};
    const auto read = [&](std::string_view text) {
      seen.clear();
      return Failure([&] { ParseJson(text, "r.json", {.values = 4}, {&rows, 1}); });
    };
    CHECK(read("{\"rows\": [[\"a\",\"b\"],[],[\"c\",\"d\",\"e\"]], \"x\": [1]}") == "accepted");
    CHECK(seen == "|0 0a 1b|1|2 0c 1d 2e");
    CHECK(read("{\"rows\": []}") == "accepted");
    CHECK(read("{\"x\": {\"rows\": 1}}") == "accepted");
    CHECK(read("{\"rows\": 1}") == "r.json: /rows: must be an array of arrays of strings");
    CHECK(read("{\"rows\": {}}") == "r.json: /rows: must be an array of arrays of strings");
    CHECK(read("{\"rows\": \"x\"}") == "r.json: /rows: must be an array of arrays of strings");
    CHECK(read("{\"rows\": [[], 1]}") == "r.json: /rows/1: must be an array of strings");
    CHECK(read("{\"rows\": [[\"a\", null]]}") == "r.json: /rows/0/1: must be a string");
    CHECK(read("{\"rows\": [[\"a\"], [[]]]}") == "r.json: /rows/1/0: must be a string");
    CHECK(read("{\"rows\": [], \"rows\": []}") == "r.json: /rows: is given twice; keep one");
  }

  TEST_CASE("integers of CBOR rows are read with their range") {
    std::string seen;
    JsonRows rows = {"rows", [](size_t) {}, [](size_t, size_t, std::string_view) {}};
    rows.integers = [&](size_t, size_t, std::span<const int64_t> numbers) {
      for (const int64_t number : numbers) seen += std::to_string(number) + " ";
    };
    const auto read = [&](const std::string& row) {
      seen.clear();
      return Failure([&] { ParseJson("\xA1\x64rows\x81" + row, "r.json", {}, {&rows, 1}); });
    };
    CHECK(read("\x81\x82\x1B\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x20"s) == "accepted");
    CHECK(seen == "9223372036854775807 -1 ");
    CHECK(read("\x81\x82\x01\x1B\x80\x00\x00\x00\x00\x00\x00\x05"s) ==
          "r.json: /rows/0/0/1: an integer out of 64 bits");
    CHECK(read("\x81\x81\x3B\x80\x00\x00\x00\x00\x00\x00\x00"s) ==
          "r.json: /rows/0/0/0: an integer out of 64 bits");
  }

  TEST_CASE("CBOR that JSON has no word for is refused") {
    const struct {
      std::string bytes, message;
    } rows[] = {
        {"\xA1"s, "f.json: byte 1: not valid CBOR: the document ends early"},
        {"\xA1\x61"s, "f.json: byte 2: not valid CBOR: the document ends early"},
        {"\xA1\x61x"s, "f.json: byte 3: not valid CBOR: the document ends early"},
        {"\xA0\x00"s, "f.json: byte 1: not valid CBOR: the document continues after its end"},
        {"\xA1\x01\x01"s, "f.json: byte 2: not valid CBOR: a key that is not text"},
        {"\xA1\x61x\x41z"s,
         "f.json: byte 4: not valid CBOR: a byte string, where only text may stand"},
        {"\xA1\x61x\xC1\x01"s,
         "f.json: byte 4: not valid CBOR: a tag, which no document of ours has"},
        {"\xA1\x61x\x7F\x61y\xFF"s,
         "f.json: byte 4: not valid CBOR: a string in pieces; write it in one"},
        {"\xA1\x61x\xF7"s,
         "f.json: byte 4: not valid CBOR: a simple value other than false, true and null"},
        {"\xA1\x61x\x1C"s, "f.json: byte 4: not valid CBOR: a reserved length"},
        {"\xA1\x61x\x1F"s, "f.json: byte 4: not valid CBOR: an integer without a size"},
        {"\xA1\x61x\x61\xC3"s, "f.json: byte 5: not valid CBOR: a string that is not UTF-8"},
        {"\xA1\x61x\xF9\x7E\x00"s, "f.json: /x: must be a finite number"},
        {"\xA1\x61x\xFA\x7F\x80\x00\x00"s, "f.json: /x: must be a finite number"},
        {"\xA1\x61x\x1B\x80\x00\x00\x00\x00\x00\x00\x00"s, "f.json: /x: an integer out of 64 bits"},
        {"\xA1\x61x\x3B\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"s, "f.json: /x: an integer out of 64 bits"},
        {"\xA2\x61x\x01\x61x\x01"s, "f.json: /x: is given twice; keep one"},
        {"\xBF\x61x\xFF"s, "f.json: byte 3: not valid CBOR: a key without a value"},
        // A string, an array and a map that claim to be huge.
        {"\xA1\x7B\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFF"s,
         "f.json: byte 10: not valid CBOR: the document ends early"},
        {"\xA1\x61x\x9B\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFF"s,
         "f.json: byte 12: not valid CBOR: the document ends early"},
        {"\xBB\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"s,
         "f.json: byte 9: not valid CBOR: the document ends early"},
        {"\xA1\x61x" + Repeat("\x81", 1000000),
         "f.json: /x" + Repeat("/0", 15) + ": nested more than 16 levels deep"},
        {"\xA1\x61x" + Repeat("\x7F", 1000000),
         "f.json: byte 4: not valid CBOR: a string in pieces; write it in one"},
    };
    for (const auto& row : rows) {
      CAPTURE(row.bytes.substr(0, 16));
      CHECK(Parse(row.bytes) == row.message);
    }
  }

  TEST_CASE("CBOR and text of the same document read alike and nlohmann agrees") {
    const char* const text =
        R"({"a": [0, 1, 23, 24, 255, 256, 65535, 65536, 4294967295, 4294967296, -1, -24, -25,
                  9223372036854775807, -9223372036854775808],
            "b": [0.5, -2.25, 1e300, 0.1], "c": {"d": "\u00e9", "e": [], "f": {}},
            "g": [true, false, null]})";
    const std::string printed = Reprint(text);
    const std::vector<uint8_t> theirs =
        nlohmann::json::to_cbor(nlohmann::ordered_json::parse(text));
    CHECK(Reprint(std::string(theirs.begin(), theirs.end())) == printed);
    std::string ours;
    WriteCbor(*ParseJson(text, "f").value, &ours);
    CHECK(Reprint(ours) == printed);
    CHECK(nlohmann::json::from_cbor(ours) == nlohmann::json::parse(text));
    // Indefinite lengths and half and single precision, as other writers use them.
    CHECK(Reprint("\xBF\x61x\x9F\x01\xF9\x3C\x01\xFA\x3F\xC0\x00\x00\xFF\x61y\xBF\xFF\xFF"s) ==
          "{\"x\": [1,1.0009765625,1.5], \"y\": {}}");
    // The least half and the largest below the normal ones.
    CHECK(Reprint("\xA1\x61x\x82\xF9\x00\x01\xF9\x83\xFF"s) ==
          Reprint(R"({"x": [5.9604644775390625e-08, -6.0975551605224609375e-05]})"));
  }

  TEST_CASE("random documents survive text and CBOR") {
    std::mt19937_64 random(20);
    const auto make = [&random](auto&& self, int depth) -> Json {
      const auto pick = random() % (depth > 4 ? 5 : 7);
      switch (pick) {
        case 0:
          return nullptr;
        case 1:
          return random() % 2 == 0;
        case 2:
          return static_cast<int64_t>(random() >> random() % 64);
        case 3: {
          const double real = std::ldexp(static_cast<double>(random() >> 11) + 0.5,
                                         static_cast<int>(random() % 100) - 80);
          return real == std::floor(real) ? 0.5 : real;
        }
        case 4: {
          std::string string;
          for (auto n = random() % 8; n > 0; --n) string += static_cast<char>(random() % 128);
          return string;
        }
        case 5: {
          Json items = Json::array();
          for (auto n = random() % 5; n > 0; --n) items.push_back(self(self, depth + 1));
          return items;
        }
        default: {
          Json object = Json::object();
          for (auto n = random() % 5; n > 0; --n) {
            object["k" + std::to_string(n)] = self(self, depth + 1);
          }
          return object;
        }
      }
    };
    for (int i = 0; i < CasesToDraw(500); ++i) {
      CAPTURE(i);
      const Json json = {{"root", make(make, 0)}};
      std::string text, cbor;
      WriteJson(json, &text);
      WriteCbor(json, &cbor);
      CHECK(Reprint(text) == text);
      CHECK(Reprint(cbor) == text);
      CHECK(nlohmann::json::from_cbor(cbor) == nlohmann::json::parse(text));
    }
  }
}

}  // namespace
}  // namespace contraflow::json_test
