#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "compiler/plan/error.h"

namespace contraflow {

/// Values as bytes for another process of the job. The machines of a job are of one kind: numbers
/// go as they lie in memory.
class ByteWriter {
 public:
  template <typename T>
  ByteWriter& Put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  ByteWriter& PutText(std::string_view text) {
    Put(uint64_t{text.size()});
    bytes_.append(text);
    return *this;
  }
  /// Content of each block, by its name.
  template <typename T>
  ByteWriter& PutByName(const std::map<std::string, T>& values) {
    Put(uint64_t{values.size()});
    for (const auto& [name, value] : values) PutText(name).Put(value);
    return *this;
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads them back, in the same order. Throws Error where they are cut off: nothing that the bytes
/// say is believed before the bytes after it are there.
class ByteReader {
 public:
  /// `what` opens errors: "the record of a step is".
  ByteReader(std::string_view bytes, const char* what) : rest_(bytes), what_(what) {}

  bool empty() const { return rest_.empty(); }

  template <typename T>
  T Take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, Skip(sizeof value), sizeof value);
    return value;
  }
  /// How many records of `size` bytes follow.
  size_t TakeCount(size_t size) {
    const auto count = Take<uint64_t>();
    if (count > rest_.size() / size) throw Error(std::string(what_) + " cut off");
    return static_cast<size_t>(count);
  }
  std::string TakeText() {
    const size_t size = TakeCount(1);
    return {Skip(size), size};
  }
  template <typename T>
  std::map<std::string, T> TakeByName() {
    std::map<std::string, T> values;
    for (size_t count = TakeCount(sizeof(uint64_t) + sizeof(T)); count > 0; --count) {
      std::string name = TakeText();
      values[std::move(name)] = Take<T>();
    }
    return values;
  }
  void RequireEnd() const {
    if (!rest_.empty())
      throw Error(std::string(what_) + " followed by bytes that belong to nothing");
  }

 private:
  const char* Skip(size_t count) {
    if (count > rest_.size()) throw Error(std::string(what_) + " cut off");
    const char* const at = rest_.data();
    rest_.remove_prefix(count);
    return at;
  }

  std::string_view rest_;
  const char* what_;
};

}  // namespace contraflow
