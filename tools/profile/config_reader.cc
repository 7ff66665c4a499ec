#include "tools/profile/config_reader.h"

#include <algorithm>

namespace contraflow {
namespace {

int64_t WholeNumber(const JsonCursor& field, int64_t high, int64_t low) {
  constexpr const char* kNoun = "a whole number";
  if (!field.IsArray()) return field.Integer(kNoun, low, high);
  const size_t size = field.Size(kNoun);
  if (size == 0) field.Fail("must be a whole number or a list of equal ones, is empty");
  const int64_t first = field.Item(0).Integer(kNoun, low, high);
  for (size_t i = 1; i < size; ++i) {
    const JsonCursor item = field.Item(i);
    if (const int64_t value = item.Integer(kNoun, low, high); value != first) {
      item.Fail("must be as the first, " + std::to_string(first) + ", is " + std::to_string(value));
    }
  }
  return first;
}

}  // namespace

JsonCursor ConfigReader::Required(const char* key) const {
  read_->insert(key);
  return json_.Required(key);
}

std::optional<JsonCursor> ConfigReader::Given(const char* key) const {
  read_->insert(key);
  std::optional<JsonCursor> field = json_.Optional(key);
  return field && !field->IsNull() ? field : std::nullopt;
}

std::optional<int64_t> ConfigReader::CountIfGiven(Keys keys, int64_t high, int64_t low) const {
  std::optional<int64_t> value;
  for (const char* key : keys) {
    const auto field = Given(key);
    if (field && !value) value = WholeNumber(*field, high, low);
  }
  if (value) return value;
  for (const char* key : keys) {
    const auto found = std::ranges::find(defaults_, key, &ConfigDefault::key);
    if (found == defaults_.end()) continue;
    const std::string text = std::string(key) + " " + std::to_string(found->value);
    if (!std::ranges::count(*taken_, text)) taken_->push_back(text);
    return found->value;
  }
  return std::nullopt;
}

int64_t ConfigReader::Count(Keys keys, int64_t high, int64_t low) const {
  if (const auto value = CountIfGiven(keys, high, low)) return *value;
  return WholeNumber(Required(*keys.begin()), high, low);
}

int64_t ConfigReader::CountOr(Keys keys, int64_t high, int64_t absent, int64_t low) const {
  return CountIfGiven(keys, high, low).value_or(absent);
}

std::optional<ConfigReader> ConfigReader::Member(const char* key) const {
  const auto field = Given(key);
  return field ? std::optional(ConfigReader(*field, read_, taken_)) : std::nullopt;
}

bool ConfigReader::FlagOr(Keys keys, bool absent) const {
  std::optional<bool> value;
  for (const char* key : keys) {
    const auto field = Given(key);
    if (field && !value) value = field->Boolean("a flag");
  }
  return value.value_or(absent);
}

}  // namespace contraflow
