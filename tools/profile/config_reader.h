#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/files/json.h"

namespace contraflow {

// Far above every model there is, and so low that no product of them loses a digit in a double.
inline constexpr int64_t kMaxWidth = 1 << 20;
inline constexpr int64_t kMaxVocabulary = 1 << 24;
inline constexpr int64_t kMaxHeads = 1 << 12;
inline constexpr int64_t kMostLayers = 1 << 11;
inline constexpr int64_t kMaxExperts = 1 << 14;
inline constexpr int64_t kMaxWindow = int64_t{1} << 30;

/// Default of transformers for a key that a config leaves out.
struct ConfigDefault {
  std::string_view key;
  int64_t value;
};

/// Names that families have for one figure; the first that is given counts.
using Keys = std::initializer_list<const char*>;

/// A config.json, or the member of it with the text model. A key that is absent or null has its
/// default. The names of all keys that were asked for, and the defaults that were taken, are kept.
class ConfigReader {
 public:
  ConfigReader(JsonCursor json, std::set<std::string_view>* read, std::vector<std::string>* taken,
               std::span<const ConfigDefault> defaults = {})
      : json_(std::move(json)), read_(read), taken_(taken), defaults_(defaults) {}

  JsonCursor Required(const char* key) const;
  std::optional<JsonCursor> Given(const char* key) const;
  /// A whole number, or a list of equal ones. Throws Error with the JSON path else.
  int64_t Count(Keys keys, int64_t high, int64_t low = 1) const;
  int64_t CountOr(Keys keys, int64_t high, int64_t absent, int64_t low = 1) const;
  bool FlagOr(Keys keys, bool absent) const;
  /// A member with keys of its own; nothing where it is missing or null.
  std::optional<ConfigReader> Member(const char* key) const;
  /// Keys that say the same as others, or nothing about costs.
  void Ignore(Keys keys) const { read_->insert(keys.begin(), keys.end()); }

 private:
  std::optional<int64_t> CountIfGiven(Keys keys, int64_t high, int64_t low) const;

  JsonCursor json_;
  std::set<std::string_view>* read_;
  std::vector<std::string>* taken_;
  std::span<const ConfigDefault> defaults_;
};

}  // namespace contraflow
