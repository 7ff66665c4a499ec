#include "compiler/files/json_builder.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "compiler/plan/error.h"
#include "compiler/plan/text.h"

namespace contraflow {
namespace {

/// Longest key: keeps messages and the search for a similar key short.
constexpr size_t kMaxKey = 128;

/// Events of nlohmann's parser, passed on to the builder.
class TextEvents {
 public:
  TextEvents(std::string_view document, const std::string& place, JsonBuilder* builder)
      : document_(document), place_(place), builder_(*builder) {}

  bool null() { return Value(nullptr); }
  bool boolean(bool value) { return Value(value); }
  bool number_integer(int64_t value) { return Value(value); }
  bool number_unsigned(uint64_t value) {
    if (value > uint64_t{INT64_MAX}) builder_.Fail("an integer out of 64 bits");
    return Value(static_cast<int64_t>(value));
  }
  bool number_float(double value, const std::string& text) {
    // The parser falls back to a double for integers that are too large, and to 0 for tiny reals.
    if (text.find_first_of(".eE") == std::string::npos) builder_.Fail("an integer out of 64 bits");
    const std::string mantissa = text.substr(0, text.find_first_of("eE"));
    if (value == 0 && mantissa.find_first_of("123456789") != std::string::npos) {
      builder_.Fail("the number " + Excerpt(text) + " is too close to 0");
    }
    return Value(value);
  }
  bool string(std::string& value) {
    builder_.String(std::move(value));
    return true;
  }
  bool binary(std::vector<uint8_t>&) { return false; }
  bool start_object(size_t) {
    builder_.BeginObject();
    return true;
  }
  bool key(std::string& value) {
    builder_.Key(std::move(value));
    return true;
  }
  bool end_object() {
    builder_.EndObject();
    return true;
  }
  bool start_array(size_t) {
    builder_.BeginArray();
    return true;
  }
  bool end_array() {
    builder_.EndArray();
    return true;
  }

  /// `position` counts the characters read, the offending one included.
  template <typename Exception>
  bool parse_error(size_t position, const std::string&, const Exception& exception) {
    const size_t at = std::min(position == 0 ? 0 : position - 1, document_.size());
    const std::string_view before = document_.substr(0, at);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const size_t column = at - (before.rfind('\n') + 1) + 1;
    throw Error(place_ + ":" + std::to_string(line) + ":" + std::to_string(column) +
                ": not valid JSON: " + Reason(exception.what()) +
                (at == document_.size() ? "; the document ends here; was it truncated?" : ""));
  }

 private:
  bool Value(Json value) {
    builder_.Value(std::move(value));
    return true;
  }

  /// The part of nlohmann's message that is about the text, without its numbering and position.
  static std::string Reason(std::string what) {
    for (const std::string_view lead : {"] ", ": ", " - "}) {
      const size_t at = what.find(lead);
      if (at != std::string::npos) what.erase(0, at + lead.size());
    }
    const size_t read = what.find("; last read: ");
    if (read != std::string::npos) {
      const size_t expected = what.find("; expected", read);
      what.erase(read, (expected == std::string::npos ? what.size() : expected) - read);
    }
    // It may quote a number of any length.
    constexpr size_t kMost = 200;
    return what.size() <= kMost ? what : what.substr(0, kMost) + "...";
  }

  const std::string_view document_;
  const std::string& place_;
  JsonBuilder& builder_;
};

}  // namespace

std::string JsonBuilder::Path() const {
  std::string path;
  for (const Open& open : open_) {
    path += open.json.is_array() ? "/" + std::to_string(open.json.size()) : PathStep(open.key);
  }
  if (row_depth_ >= 2) path += "/" + std::to_string(row_);
  if (row_depth_ >= 3) path += "/" + std::to_string(index_);
  if (row_depth_ == 4) path += "/" + std::to_string(integers_.size());
  return path;
}

void JsonBuilder::Fail(const std::string& what) const {
  const std::string path = Path();
  throw Error(place_ + (path.empty() ? "" : ": " + path) + ": " + what);
}

void JsonBuilder::FailRows() const {
  Fail(row_depth_ == 1   ? "must be an array of arrays of strings"
       : row_depth_ == 2 ? "must be an array of strings"
       : row_depth_ == 3 ? "must be a string"
                         : "must be a whole number");
}

void JsonBuilder::Value(Json value) {
  if (row_depth_ == 4) {
    const auto* const integer = value.get_ptr<const Json::number_integer_t*>();
    if (integer == nullptr) FailRows();
    if (integers_.size() == kMaxRowIntegers) {
      Fail("more than " + std::to_string(kMaxRowIntegers) + " numbers");
    }
    integers_.push_back(*integer);
    return;
  }
  if (InRows()) FailRows();
  if (++values_ > limits_.values) {
    Fail("the document holds more than " + std::to_string(limits_.values) +
         " values, the limit for its kind");
  }
  if (open_.empty()) {
    root_ = std::move(value);
    return;
  }
  Open& top = open_.back();
  if (top.json.is_array()) {
    top.json.push_back(std::move(value));
  } else {
    top.json.emplace(std::exchange(top.key, {}), std::move(value));
  }
}

void JsonBuilder::String(std::string text) {
  if (row_depth_ == 3) {
    in_->take(row_, index_++, text);
    return;
  }
  Value(std::move(text));
}

void JsonBuilder::Key(std::string key) {
  if (key.size() > kMaxKey) {
    Fail("a key of " + std::to_string(key.size()) + " bytes; no key has more than " +
         std::to_string(kMaxKey));
  }
  Open& top = open_.back();
  const auto rows =
      std::find_if(rows_.begin(), rows_.end(), [&key](const JsonRows& r) { return r.key == key; });
  const bool again = top.json.contains(key);
  top.key = std::move(key);
  if (again) Fail("is given twice; keep one");
  if (top.json.size() >= limits_.members) {
    Fail("an object with more than " + std::to_string(limits_.members) + " keys");
  }
  if (open_.size() == 1 && rows != rows_.end()) {
    in_ = &*rows;
    row_depth_ = 1;
    row_ = 0;
  }
}

void JsonBuilder::Push(Json container) {
  if (open_.size() >= kMaxJsonDepth) {
    Fail("nested more than " + std::to_string(kMaxJsonDepth) + " levels deep");
  }
  open_.push_back({std::move(container), {}});
}

void JsonBuilder::Pop() {
  Json done = std::move(open_.back().json);
  open_.pop_back();
  Value(std::move(done));
}

void JsonBuilder::BeginArray() {
  if (!InRows()) return Push(Json::array());
  if (row_depth_ == 4 || (row_depth_ == 3 && !in_->integers)) FailRows();
  if (++row_depth_ == 4) {
    integers_.clear();
  } else if (row_depth_ == 3) {
    index_ = 0;
    in_->begin(row_);
  }
}

void JsonBuilder::EndArray() {
  if (!InRows()) return Pop();
  if (--row_depth_ == 3) return Integers(integers_);
  if (row_depth_ == 2) {
    ++row_;
    return;
  }
  in_ = nullptr;
  row_depth_ = 0;
  Value(Json::array());
}

void JsonBuilder::BeginObject() {
  if (InRows()) FailRows();
  Push(Json::object());
}

void JsonBuilder::EndObject() { Pop(); }

JsonDocument ParseJson(std::string_view document, const std::string& place,
                       const JsonLimits& limits, std::span<const JsonRows> rows) {
  if (document.size() > limits.bytes) {
    throw Error(place + ": has " + std::to_string(document.size()) + " bytes; at most " +
                std::to_string(limits.bytes) + " are read");
  }
  if (document.empty()) throw Error(place + ": is empty; it must hold a JSON document");
  JsonBuilder builder(place, limits, rows);
  if (LooksLikeCbor(document)) {
    ReadCbor(document, place, &builder);
  } else {
    TextEvents events(document, place, &builder);
    nlohmann::json::sax_parse(document.begin(), document.end(), &events,
                              nlohmann::json::input_format_t::json, true, limits.comments);
  }
  return {place, std::make_shared<Json>(builder.Take())};
}

std::string PathStep(std::string_view key) {
  std::string step = "/";
  const std::string quoted = Excerpt(key);
  const size_t end = quoted.rfind('"');
  for (size_t i = 1; i < end; ++i) {
    const char c = quoted[i];
    if (c == '~') {
      step += "~0";
    } else if (c == '/') {
      step += "~1";
    } else {
      step += c;
    }
  }
  return step + quoted.substr(end + 1);
}

bool ValidUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t bytes = SymbolBytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

}  // namespace contraflow
