#include "compiler/files/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "compiler/files/json_builder.h"
#include "compiler/plan/error.h"

namespace contraflow {
namespace {

const JsonObject* ObjectOf(const Json& json) {
  const auto* object = std::get_if<std::unique_ptr<JsonObject>>(&json.value);
  return object == nullptr ? nullptr : object->get();
}

/// The value in a message: "-3", `"x"`, "an array".
std::string Describe(const Json& json) {
  struct Describer {
    std::string operator()(std::nullptr_t) const { return "null"; }
    std::string operator()(bool boolean) const { return boolean ? "true" : "false"; }
    std::string operator()(int64_t integer) const { return std::to_string(integer); }
    std::string operator()(double real) const {
      // A whole real must not look like the integer that was asked for.
      const std::string text = FormatReal(real);
      return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
    }
    std::string operator()(const std::string& text) const { return Excerpt(text); }
    std::string operator()(const Json::Array&) const { return "an array"; }
    std::string operator()(const std::unique_ptr<JsonObject>&) const { return "an object"; }
  };
  return std::visit(Describer{}, json.value);
}

std::string Range(std::string_view noun, const std::string& low, const std::string& high) {
  return std::string(noun) + " in " + low + ".." + high;
}

}  // namespace

Json::Json(Value v) : value(std::move(v)) {}
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(Json&& other) noexcept = default;
Json::~Json() = default;

void JsonObject::Add(std::string key, Json value) {
  keys.push_back(std::move(key));
  values.push_back(std::move(value));
}

std::string JsonCursor::where() const { return *place_ + (path_.empty() ? "" : ": " + path_); }

void JsonCursor::Fail(const std::string& what) const { throw Error(where() + ": " + what); }

void JsonCursor::Refuse(const std::string& expected) const {
  Fail("must be " + expected + ", is " + Describe(*value_));
}

int64_t JsonCursor::Integer(std::string_view noun, int64_t low, int64_t high) const {
  const auto* integer = std::get_if<int64_t>(&value_->value);
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
  const auto& items = std::get<Json::Array>(value_->value);
  std::vector<int> integers;
  integers.reserve(size);
  for (size_t i = 0; i < size; ++i) {
    const auto* integer = std::get_if<int64_t>(&items[i].value);
    // The path is made only for what is refused.
    integers.push_back(integer != nullptr && *integer >= low && *integer <= high
                           ? static_cast<int>(*integer)
                           : static_cast<int>(Item(i).Integer(noun, low, high)));
  }
  return integers;
}

double JsonCursor::Number(std::string_view noun) const {
  if (const auto* real = std::get_if<double>(&value_->value)) return *real;
  const auto* integer = std::get_if<int64_t>(&value_->value);
  if (integer == nullptr) Refuse(std::string(noun));
  const double real = static_cast<double>(*integer);
  // 2^63 is where the way back would overflow.
  if (std::abs(real) >= 0x1p63 || static_cast<int64_t>(real) != *integer) {
    Fail("the integer " + std::to_string(*integer) + " is too large to be kept exactly");
  }
  return real;
}

double JsonCursor::Number(std::string_view noun, double low, double high) const {
  const bool number = std::holds_alternative<double>(value_->value) ||
                      std::holds_alternative<int64_t>(value_->value);
  const std::string range = Range(noun, FormatReal(low), FormatReal(high));
  const double real = number ? Number(noun) : 0;
  if (!number || !(real >= low && real <= high)) Refuse(range);
  return real;
}

bool JsonCursor::Boolean(std::string_view noun) const {
  const auto* boolean = std::get_if<bool>(&value_->value);
  if (boolean == nullptr) Refuse(std::string(noun) + ", true or false");
  return *boolean;
}

const std::string& JsonCursor::String(std::string_view noun, size_t most) const {
  const auto* text = std::get_if<std::string>(&value_->value);
  if (text == nullptr) Refuse(std::string(noun) + " in quotes");
  if (text->size() > most) {
    Fail("must have at most " + std::to_string(most) + " bytes, has " +
         std::to_string(text->size()));
  }
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
  if (std::any_of(text->begin(), text->end(), control)) {
    Fail("must have no control characters, is " + Excerpt(*text));
  }
  return *text;
}

bool JsonCursor::IsArray() const { return std::holds_alternative<Json::Array>(value_->value); }
bool JsonCursor::IsObject() const { return ObjectOf(*value_) != nullptr; }

size_t JsonCursor::Size(std::string_view noun) const {
  const auto* items = std::get_if<Json::Array>(&value_->value);
  if (items == nullptr) Refuse(std::string(noun));
  return items->size();
}

JsonCursor JsonCursor::Item(size_t i) const {
  const auto& items = std::get<Json::Array>(value_->value);
  return JsonCursor(*place_, items.at(i), path_ + "/" + std::to_string(i));
}

void JsonCursor::Keys(std::string_view noun, std::span<const std::string_view> known) const {
  const JsonObject* object = ObjectOf(*value_);
  if (object == nullptr) Refuse(std::string(noun));
  for (const std::string& key : object->keys) {
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
  const JsonObject* object = ObjectOf(*value_);
  if (object == nullptr) Refuse("an object");
  const auto found = std::find(object->keys.begin(), object->keys.end(), key);
  if (found == object->keys.end()) return std::nullopt;
  const auto index = static_cast<size_t>(found - object->keys.begin());
  return JsonCursor(*place_, object->values[index], path_ + PathStep(key));
}

std::string QuoteJson(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
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
  struct Writer {
    std::string* out;
    void operator()(std::nullptr_t) const { *out += "null"; }
    void operator()(bool boolean) const { *out += boolean ? "true" : "false"; }
    void operator()(int64_t integer) const { *out += std::to_string(integer); }
    void operator()(double real) const { *out += FormatReal(real); }
    void operator()(const std::string& text) const { *out += QuoteJson(text); }
    void operator()(const Json::Array& items) const {
      *out += '[';
      // rfind gives npos on the first line, which wraps to column out->size().
      const size_t column = out->size() - (out->rfind('\n') + 1);
      for (size_t i = 0; i < items.size(); ++i) {
        if (i > 0) *out += ObjectOf(items[i]) != nullptr ? ",\n" + std::string(column, ' ') : ",";
        WriteJson(items[i], out);
      }
      *out += ']';
    }
    void operator()(const std::unique_ptr<JsonObject>& object) const {
      *out += '{';
      for (size_t i = 0; i < object->keys.size(); ++i) {
        if (i > 0) *out += ", ";
        *out += QuoteJson(object->keys[i]) + ": ";
        WriteJson(object->values[i], out);
      }
      *out += '}';
    }
  };
  std::visit(Writer{out}, value.value);
}

}  // namespace contraflow
