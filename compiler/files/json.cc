#include "compiler/files/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "compiler/files/json_builder.h"
#include "compiler/plan/error.h"
#include "compiler/plan/text.h"

namespace contraflow {
namespace {

/// The value in a message: "-3", `"x"`, "an array".
std::string Describe(const Json& json) {
  if (json.is_structured()) return json.is_array() ? "an array" : "an object";
  if (json.is_string()) return Excerpt(json.get_ref<const std::string&>());
  std::string text;
  WriteJson(json, &text);
  // A whole real must not look like the integer that was asked for.
  const bool whole = json.is_number_float() && text.find_first_of(".e") == std::string::npos;
  return whole ? text + ".0" : text;
}

std::string Range(std::string_view noun, const std::string& low, const std::string& high) {
  return std::string(noun) + " in " + low + ".." + high;
}

}  // namespace

std::string JsonCursor::where() const { return *place_ + (path_.empty() ? "" : ": " + path_); }

void JsonCursor::Fail(const std::string& what) const { throw Error(where() + ": " + what); }

void JsonCursor::Refuse(const std::string& expected) const {
  Fail("must be " + expected + ", is " + Describe(*value_));
}

int64_t JsonCursor::Integer(std::string_view noun, int64_t low, int64_t high) const {
  const auto* integer = value_->get_ptr<const Json::number_integer_t*>();
  if (integer == nullptr || *integer < low || *integer > high) {
    Refuse(Range(noun, std::to_string(low), std::to_string(high)));
  }
  return *integer;
}

std::vector<int> JsonCursor::Integers(std::string_view noun, int low, int high, size_t most) const {
  const size_t size = Size("an array");
  if (size > most) {
    Fail("must have at most " + std::to_string(most) + " entries, has " + std::to_string(size));
  }
  std::vector<int> integers;
  integers.reserve(size);
  for (size_t i = 0; i < size; ++i) {
    const auto* integer = (*value_)[i].get_ptr<const Json::number_integer_t*>();
    // The path is made only for what is refused.
    integers.push_back(integer != nullptr && *integer >= low && *integer <= high
                           ? static_cast<int>(*integer)
                           : static_cast<int>(Item(i).Integer(noun, low, high)));
  }
  return integers;
}

double JsonCursor::Number(std::string_view noun) const {
  if (value_->is_number_float()) return value_->get<double>();
  const auto* integer = value_->get_ptr<const Json::number_integer_t*>();
  if (integer == nullptr) Refuse(std::string(noun));
  const double real = static_cast<double>(*integer);
  // 2^63 is where the way back would overflow.
  if (std::abs(real) >= 0x1p63 || static_cast<int64_t>(real) != *integer) {
    Fail("the integer " + std::to_string(*integer) + " is too large to be kept exactly");
  }
  return real;
}

double JsonCursor::Number(std::string_view noun, double low, double high) const {
  const bool number = value_->is_number();
  const std::string range = Range(noun, FormatReal(low), FormatReal(high));
  const double real = number ? Number(noun) : 0;
  if (!number || !(real >= low && real <= high)) Refuse(range);
  return real;
}

bool JsonCursor::Boolean(std::string_view noun) const {
  if (!value_->is_boolean()) Refuse(std::string(noun) + ", true or false");
  return value_->get<bool>();
}

const std::string& JsonCursor::String(std::string_view noun, size_t most) const {
  const auto* text = value_->get_ptr<const std::string*>();
  if (text == nullptr) Refuse(std::string(noun) + " in quotes");
  if (text->size() > most) {
    Fail("must have at most " + std::to_string(most) + " bytes, has " +
         std::to_string(text->size()));
  }
  if (PlainLine(*text) != *text) {
    Fail("must have no control characters, is " + Excerpt(*text));
  }
  return *text;
}

bool JsonCursor::IsNull() const { return value_->is_null(); }
bool JsonCursor::IsString() const { return value_->is_string(); }
bool JsonCursor::IsArray() const { return value_->is_array(); }
bool JsonCursor::IsObject() const { return value_->is_object(); }

size_t JsonCursor::Size(std::string_view noun) const {
  if (!IsArray()) Refuse(std::string(noun));
  return value_->size();
}

JsonCursor JsonCursor::Item(size_t i) const {
  return JsonCursor(*place_, value_->at(i), path_ + "/" + std::to_string(i));
}

void JsonCursor::Keys(std::string_view noun, std::span<const std::string_view> known) const {
  if (!IsObject()) Refuse(std::string(noun));
  for (const auto& [key, value] : value_->items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    std::string list;
    for (const std::string_view name : known) {
      list += (list.empty() ? "" : ", ") + std::string(name);
    }
    Fail("unknown key " + Excerpt(key) + DidYouMean(key, known) + "; known are: " + list);
  }
}

JsonCursor JsonCursor::Required(std::string_view key) const {
  std::optional<JsonCursor> member = Optional(key);
  if (!member) Fail("the key " + QuoteJson(key) + " is missing; add it");
  return *member;
}

std::optional<JsonCursor> JsonCursor::Optional(std::string_view key) const {
  if (!IsObject()) Refuse("an object");
  const auto found = value_->find(key);
  if (found == value_->end()) return std::nullopt;
  return JsonCursor(*place_, *found, path_ + PathStep(key));
}

std::string QuoteJson(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const size_t bytes = SymbolBytes(text);
    const std::string_view symbol = text.substr(0, std::max<size_t>(bytes, 1));
    text.remove_prefix(symbol.size());
    const std::string escaped = bytes == 0 ? "\\ufffd" : EscapedSymbol(symbol);
    if (symbol == "\"" || symbol == "\\") out += '\\';
    out += escaped.empty() ? symbol : std::string_view(escaped);
  }
  return out + '"';
}

std::string Excerpt(std::string_view text) {
  constexpr size_t kMost = 60;
  if (text.size() <= kMost) return QuoteJson(text);
  size_t cut = kMost;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  return QuoteJson(text.substr(0, cut)) + "...";
}

std::string FormatReal(double value) {
  CF_ASSERT(std::isfinite(value));
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return std::string(buffer, end);
}

void WriteJson(const Json& value, std::string* out) {
  if (value.is_string()) {
    *out += QuoteJson(value.get_ref<const std::string&>());
  } else if (value.is_number_float()) {
    *out += FormatReal(value.get<double>());
  } else if (value.is_array()) {
    *out += '[';
    // rfind gives npos on the first line, which wraps to column out->size().
    const size_t column = out->size() - (out->rfind('\n') + 1);
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) *out += value[i].is_object() ? ",\n" + std::string(column, ' ') : ",";
      WriteJson(value[i], out);
    }
    *out += ']';
  } else if (value.is_object()) {
    const char* separator = "";
    *out += '{';
    for (const auto& [key, member] : value.items()) {
      *out += separator + QuoteJson(key) + ": ";
      WriteJson(member, out);
      separator = ", ";
    }
    *out += '}';
  } else {
    *out += value.dump();
  }
}

}  // namespace contraflow
