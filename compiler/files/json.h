#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/error.h"

namespace contraflow {

/// Members in document order; integers and reals stay apart, nothing is narrowed. Begin with
/// Json::array() or Json::object(): a null that becomes one crashes where memory is short.
using Json = nlohmann::ordered_json;

/// Limits beyond which a document is refused, whatever it says about itself.
struct JsonLimits {
  size_t bytes = size_t{1} << 20;   ///< of the document
  size_t values = size_t{1} << 16;  ///< kept in the tree
  size_t members = 64;              ///< of one object
  /// JSON text may have comments, "//" to the end of the line and "/*" to "*/", as may stand
  /// wherever a space may.
  bool comments = false;
};
/// Deepest nesting of arrays and objects.
inline constexpr size_t kMaxJsonDepth = 16;

/// A top-level member too large to keep: an array of arrays of strings or of short lists of whole
/// numbers (a plan's programs or slots). It is handed over while the document is read; the tree has
/// an empty array in its place.
struct JsonRows {
  std::string key;
  std::function<void(size_t row)> begin;  ///< row 0, 1, ... starts
  /// String `index` of the row. The view ends with the call. Its exceptions are passed on.
  std::function<void(size_t row, size_t index, std::string_view text)> take;
  /// Like `take`, for an entry that is a list of at most kMaxRowIntegers whole numbers. If empty,
  /// such an entry is refused.
  std::function<void(size_t row, size_t index, std::span<const int64_t> integers)> integers = {};
};
inline constexpr size_t kMaxRowIntegers = 32;

/// A value of a document and the path to it: reads fields, and throws Error
/// "PLACE: PATH: must be NOUN in LOW..HIGH, is ..." for what does not fit. Valid as long as its
/// document.
class JsonCursor {
 public:
  JsonCursor(const std::string& place, const Json& value, std::string path)
      : place_(&place), value_(&value), path_(std::move(path)) {}

  /// Throws Error "PLACE: PATH: what".
  [[noreturn]] void Fail(const std::string& what) const;
  /// Returns `read` of this value; the text of its Error becomes that of Fail, unless it has the
  /// place already.
  template <typename Read>
  auto Checked(Read read) const {
    try {
      return read();
    } catch (const Error& error) {
      if (std::string_view(error.what()).starts_with(where() + ": ")) throw;
      Fail(error.what());
    }
  }
  /// "PLACE: PATH", for messages made elsewhere.
  std::string where() const;

  /// An integer, written without point or exponent, in [low, high].
  int64_t Integer(std::string_view noun, int64_t low, int64_t high) const;
  /// An array of at most `most` such integers.
  std::vector<int> Integers(std::string_view noun, int low, int high, size_t most) const;
  /// A finite number in [low, high]. Integers are taken where a double holds them exactly.
  double Number(std::string_view noun, double low, double high) const;
  /// Any finite number; the caller checks its range.
  double Number(std::string_view noun) const;
  bool Boolean(std::string_view noun) const;
  /// Text without control characters, at most `most` bytes.
  const std::string& String(std::string_view noun, size_t most = 4096) const;

  bool IsNull() const;
  bool IsString() const;
  bool IsArray() const;
  bool IsObject() const;
  /// Number of elements; refuses what is not an array.
  size_t Size(std::string_view noun) const;
  /// Element of an array; i < Size().
  JsonCursor Item(size_t i) const;

  /// Refuses what is not an object and keys that are not in `known`, with the nearest known one.
  void Keys(std::string_view noun, std::span<const std::string_view> known) const;
  void Keys(std::string_view noun, std::initializer_list<std::string_view> known) const {
    Keys(noun, std::span(known.begin(), known.size()));
  }
  /// Member of an object; refuses its absence.
  JsonCursor Required(std::string_view key) const;
  /// Member of an object, nothing if it is absent.
  std::optional<JsonCursor> Optional(std::string_view key) const;

 private:
  /// Throws "must be EXPECTED, is ...".
  [[noreturn]] void Refuse(const std::string& expected) const;

  const std::string* place_;
  const Json* value_;
  std::string path_;
};

/// A whole document. `place` (a file name) begins every message about it.
struct JsonDocument {
  std::string place;
  std::shared_ptr<Json> value;  // a pointer, so that json.hpp need not be included here

  JsonCursor Root() const { return JsonCursor(place, *value, ""); }
};

/// Reads JSON text or CBOR (a document that begins with the head of a CBOR map). Strict: refuses
/// comments unless the limits take them, duplicate keys, integers out of 64 bits, reals out of a
/// double's range, NaN, invalid UTF-8, what follows the document, and sizes over the limits, with
/// line and column (CBOR: byte) or JSON path.
JsonDocument ParseJson(std::string_view document, const std::string& place,
                       const JsonLimits& limits = {}, std::span<const JsonRows> rows = {});

/// The text in quotes, with JSON's escapes.
std::string QuoteJson(std::string_view text);
/// Like QuoteJson, of a key or text from a document for use in a message: cut short where it is
/// long.
std::string Excerpt(std::string_view text);
/// The shortest decimal text that reads back as the same double; finite values only.
std::string FormatReal(double value);
/// Appends the value in the layout of our files: "[1,2]", `{"a": 1, "b": 2}`, objects in an array
/// one below the other.
void WriteJson(const Json& value, std::string* out);

// Like WriteJson, in CBOR (RFC 8949).
/// Append the head of an array or a map of `size` entries.
void BeginCborArray(uint64_t size, std::string* out);
void BeginCborMap(uint64_t size, std::string* out);
void WriteCborInteger(int64_t integer, std::string* out);
void WriteCborString(std::string_view text, std::string* out);
void WriteCbor(const Json& value, std::string* out);

}  // namespace contraflow
