#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/files/json.h"

namespace contraflow {

/// Makes a Json of the events of a parser (text or CBOR) and enforces what both forms share: depth,
/// sizes, duplicate keys, and where strings of JsonRows go. Throws Error with place and path.
class JsonBuilder {
 public:
  JsonBuilder(const std::string& place, const JsonLimits& limits, std::span<const JsonRows> rows)
      : place_(place), limits_(limits), rows_(rows) {}
  // Both must outlive it.
  JsonBuilder(const std::string&&, const JsonLimits&, std::span<const JsonRows>) = delete;
  JsonBuilder(const std::string&, const JsonLimits&&, std::span<const JsonRows>) = delete;
  JsonBuilder(const std::string&&, const JsonLimits&&, std::span<const JsonRows>) = delete;

  void Value(Json value);
  void String(std::string text);
  void Key(std::string key);
  void BeginArray();
  void EndArray();
  void BeginObject();
  void EndObject();

  /// True if the next value may be a list of whole numbers in a row; then Integers takes it in one
  /// go, in place of BeginArray, its values and EndArray. At most kMaxRowIntegers.
  bool TakesIntegers() const { return row_depth_ == 3 && in_->integers; }
  void Integers(std::span<const int64_t> integers) { in_->integers(row_, index_++, integers); }

  /// Throws Error "PLACE: PATH: what" for the value that comes next.
  [[noreturn]] void Fail(const std::string& what) const;
  Json Take() { return std::move(root_); }

 private:
  /// An array or object that is still open.
  struct Open {
    Json json;
    std::string key;  ///< objects: of the member that comes next
  };

  std::string Path() const;
  void Push(Json container);
  void Pop();
  /// True if the next value belongs to the rows and not to the tree.
  bool InRows() const { return in_ != nullptr; }
  [[noreturn]] void FailRows() const;

  const std::string& place_;
  const JsonLimits& limits_;
  const std::span<const JsonRows> rows_;
  std::vector<Open> open_;
  Json root_;
  size_t values_ = 0;
  const JsonRows* in_ = nullptr;  ///< the rows that the next value belongs to
  /// In rows 1: before their array; 2: in it; 3: in a row; 4: in a list of whole numbers.
  int row_depth_ = 0;
  size_t row_ = 0, index_ = 0;
  std::vector<int64_t> integers_;  ///< of the list so far
};

/// True if the document begins with the head of a CBOR map; no JSON text does.
bool LooksLikeCbor(std::string_view document);

/// Reads one CBOR item (RFC 8949) and passes it to the builder. An item that JSON has no word for
/// is refused: byte strings, tags, keys that are no text, `undefined`, NaN and infinity; so are
/// strings in pieces. Does not recurse, and allocates nothing for a size that the document only
/// claims.
void ReadCbor(std::string_view document, const std::string& place, JsonBuilder* builder);

/// Puts up to `most` further bytes of a document there; 0 at its end.
using MoreBytes = std::function<size_t(char* to, size_t most)>;

/// Like the overload above, for a document in pieces: its beginning, then those of `more`. Holds
/// one piece at a time.
void ReadCbor(std::string_view beginning, const MoreBytes& more, const std::string& place,
              JsonBuilder* builder);

/// "/" and the key as in a JSON pointer, fit for a message.
std::string PathStep(std::string_view key);
/// True for well-formed UTF-8 (no surrogates, no overlong forms).
bool ValidUtf8(std::string_view text);

}  // namespace contraflow
