#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "compiler/files/json_builder.h"
#include "compiler/plan/error.h"

namespace contraflow {
namespace {

enum Major : uint8_t { kUnsigned, kNegative, kBytes, kText, kArray, kMap, kTag, kOther };
constexpr uint8_t kIndefinite = 31;
constexpr uint8_t kBreak = 0xFF;
/// Longest string: far more than any text of ours has.
constexpr uint64_t kMaxText = uint64_t{1} << 20;
/// Bytes asked for at a time.
constexpr size_t kReadPiece = size_t{1} << 18;
/// Longest integer: its head and eight bytes.
constexpr size_t kMaxInteger = 9;

/// The first byte of an item, and the number after it.
struct Head {
  Major major;
  uint8_t info;
  uint64_t argument;
};

/// An array or map that is still open.
struct Open {
  bool map, indefinite, key_next;
  uint64_t left;  ///< items; of a map, pairs
};

class Reader {
 public:
  Reader(std::string_view beginning, const MoreBytes& more, const std::string& place,
         JsonBuilder* builder)
      : rest_(beginning),
        got_(beginning.size()),
        more_(more),
        ended_(!more),
        place_(place),
        builder_(*builder) {}

  void Read() {
    do {
      if (!open_.empty() && CloseIfDone()) continue;
      Item();
    } while (!open_.empty());
    if (Ready(1)) Fail("the document continues after its end");
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    throw Error(place_ + ": byte " + std::to_string(got_ - rest_.size()) +
                ": not valid CBOR: " + what);
  }

  /// Fetches pieces until as many bytes are at hand; false if the document has no more.
  bool Ready(uint64_t size) {
    while (rest_.size() < size && !ended_) Fetch();
    return rest_.size() >= size;
  }

  void Fetch() {
    const size_t kept = rest_.size();
    if (piece_.empty()) {
      piece_.assign(rest_.begin(), rest_.end());
    } else {
      std::copy(rest_.begin(), rest_.end(), piece_.begin());
    }
    piece_.resize(std::max(kReadPiece, 2 * kept));
    const size_t added = more_(piece_.data() + kept, piece_.size() - kept);
    ended_ = added == 0;
    got_ += added;
    rest_ = std::string_view(piece_.data(), kept + added);
  }

  std::string_view Take(uint64_t size) {
    if (!Ready(size)) Fail("the document ends early");
    const std::string_view taken = rest_.substr(0, static_cast<size_t>(size));
    rest_.remove_prefix(static_cast<size_t>(size));
    return taken;
  }

  uint64_t TakeNumber(int bytes) {
    uint64_t number = 0;
    for (const char c : Take(static_cast<uint64_t>(bytes))) {
      number = number << 8 | static_cast<unsigned char>(c);
    }
    return number;
  }

  Head TakeHead() {
    const auto first = static_cast<unsigned char>(Take(1)[0]);
    Head head{static_cast<Major>(first >> 5), static_cast<uint8_t>(first & 31), 0};
    if (head.info < 24) {
      head.argument = head.info;
    } else if (head.info < 28) {
      head.argument = TakeNumber(1 << (head.info - 24));
    } else if (head.info < kIndefinite) {
      Fail("a reserved length");
    }
    return head;
  }

  /// Closes the innermost container if nothing more belongs to it.
  bool CloseIfDone() {
    Open& top = open_.back();
    if (top.indefinite) {
      if (!Ready(1) || static_cast<unsigned char>(rest_[0]) != kBreak) return false;
      if (top.map && !top.key_next) Fail("a key without a value");
      Take(1);
    } else if (top.left > 0 || (top.map && !top.key_next)) {
      return false;
    }
    top.map ? builder_.EndObject() : builder_.EndArray();
    open_.pop_back();
    return true;
  }

  void Item() {
    if (!open_.empty()) {
      Open& top = open_.back();
      if (top.map && top.key_next) {
        const Head head = TakeHead();
        if (head.major != kText) Fail("a key that is not text");
        builder_.Key(Text(head));
        top.key_next = false;
        if (!top.indefinite) --top.left;
        return;
      }
      if (top.map) {
        top.key_next = true;
      } else if (!top.indefinite) {
        --top.left;
      }
    }
    const Head head = TakeHead();
    switch (head.major) {
      case kUnsigned:
      case kNegative:
        if (head.info == kIndefinite) Fail("an integer without a size");
        if (head.argument > uint64_t{INT64_MAX}) builder_.Fail("an integer out of 64 bits");
        builder_.Value(head.major == kUnsigned ? static_cast<int64_t>(head.argument)
                                               : -1 - static_cast<int64_t>(head.argument));
        return;
      case kText:
        builder_.String(Text(head));
        return;
      case kArray:
        if (builder_.TakesIntegers() && head.info != kIndefinite && TakeIntegers(head.argument)) {
          return;
        }
        builder_.BeginArray();
        open_.push_back({false, head.info == kIndefinite, false, head.argument});
        return;
      case kMap:
        builder_.BeginObject();
        open_.push_back({true, head.info == kIndefinite, true, head.argument});
        return;
      case kBytes:
        Fail("a byte string, where only text may stand");
      case kTag:
        Fail("a tag, which no document of ours has");
      case kOther:
        Simple(head);
        return;
    }
  }

  /// The short way for the lists that large plans are made of: passes on `count` integers if that
  /// is what comes next, and takes nothing if not.
  bool TakeIntegers(uint64_t count) {
    if (count > kMaxRowIntegers) return false;
    Ready(count * kMaxInteger);
    std::array<int64_t, kMaxRowIntegers> integers;
    size_t at = 0;
    for (size_t i = 0; i < count; ++i) {
      if (at == rest_.size()) return false;
      const auto first = static_cast<unsigned char>(rest_[at++]);
      const unsigned info = first & 31U;
      if (first >> 5 > kNegative || info >= 28) return false;
      uint64_t number = info;
      if (info >= 24) {
        const size_t bytes = size_t{1} << (info - 24);
        if (rest_.size() - at < bytes) return false;
        number = 0;
        for (size_t k = 0; k < bytes; ++k) {
          number = number << 8 | static_cast<unsigned char>(rest_[at++]);
        }
      }
      if (number > uint64_t{INT64_MAX}) return false;
      integers[i] = first >> 5 == kUnsigned ? static_cast<int64_t>(number)
                                            : -1 - static_cast<int64_t>(number);
    }
    rest_.remove_prefix(at);
    builder_.Integers(std::span(integers.data(), static_cast<size_t>(count)));
    return true;
  }

  std::string Text(const Head& head) {
    if (head.info == kIndefinite) Fail("a string in pieces; write it in one");
    if (head.argument > kMaxText && Ready(kMaxText)) {
      Fail("a string of " + std::to_string(head.argument) + " bytes, no text has more than " +
           std::to_string(kMaxText));
    }
    const std::string_view text = Take(head.argument);
    if (!ValidUtf8(text)) Fail("a string that is not UTF-8");
    return std::string(text);
  }

  void Simple(const Head& head) {
    double real = 0;
    switch (head.info) {
      case 20:
      case 21:
        return builder_.Value(head.info == 21);
      case 22:
        return builder_.Value(nullptr);
      case 25:
        real = Half(static_cast<unsigned>(head.argument));
        break;
      case 26: {
        const auto bits = static_cast<uint32_t>(head.argument);
        float single;
        std::memcpy(&single, &bits, sizeof single);
        real = static_cast<double>(single);
        break;
      }
      case 27:
        std::memcpy(&real, &head.argument, sizeof real);
        break;
      default:
        Fail("a simple value other than false, true and null");
    }
    if (!std::isfinite(real)) builder_.Fail("must be a finite number");
    builder_.Value(real);
  }

  /// IEEE 754 binary16.
  static double Half(unsigned bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const double fraction = bits & 1023;
    const double magnitude = exponent == 31  ? (fraction == 0 ? INFINITY : NAN)
                             : exponent == 0 ? std::ldexp(fraction, -24)
                                             : std::ldexp(fraction + 1024, exponent - 25);
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
  }

  std::string_view rest_;    // bytes at hand and not taken yet
  uint64_t got_;             // bytes of the document so far, with the rest
  std::vector<char> piece_;  // holds the rest, but for the beginning
  const MoreBytes& more_;
  bool ended_;
  const std::string& place_;
  JsonBuilder& builder_;
  std::vector<Open> open_;
};

void WriteHead(Major major, uint64_t argument, std::string* out) {
  const auto lead = static_cast<unsigned>(major) << 5;
  if (argument < 24) {
    out->push_back(static_cast<char>(lead | static_cast<unsigned>(argument)));
    return;
  }
  const int log = argument <= 0xFF ? 0 : argument <= 0xFFFF ? 1 : argument <= 0xFFFFFFFF ? 2 : 3;
  out->push_back(static_cast<char>(lead | static_cast<unsigned>(24 + log)));
  for (int shift = (8 << log) - 8; shift >= 0; shift -= 8) {
    out->push_back(static_cast<char>(argument >> shift & 0xFF));
  }
}

}  // namespace

bool LooksLikeCbor(std::string_view document) {
  return !document.empty() && static_cast<unsigned char>(document[0]) >> 5 == kMap;
}

void ReadCbor(std::string_view document, const std::string& place, JsonBuilder* builder) {
  Reader(document, {}, place, builder).Read();
}

void ReadCbor(std::string_view beginning, const MoreBytes& more, const std::string& place,
              JsonBuilder* builder) {
  Reader(beginning, more, place, builder).Read();
}

void BeginCborArray(uint64_t size, std::string* out) { WriteHead(kArray, size, out); }
void BeginCborMap(uint64_t size, std::string* out) { WriteHead(kMap, size, out); }

void WriteCborInteger(int64_t integer, std::string* out) {
  integer >= 0 ? WriteHead(kUnsigned, static_cast<uint64_t>(integer), out)
               : WriteHead(kNegative, static_cast<uint64_t>(-1 - integer), out);
}

void WriteCborString(std::string_view text, std::string* out) {
  WriteHead(kText, text.size(), out);
  out->append(text);
}

void WriteCbor(const Json& value, std::string* out) {
  if (value.is_number_float()) {
    // In eight bytes always; nlohmann's writer takes four where they do.
    const auto bits = std::bit_cast<uint64_t>(value.get<double>());
    out->push_back('\xFB');
    for (int shift = 56; shift >= 0; shift -= 8) {
      out->push_back(static_cast<char>(bits >> shift & 0xFF));
    }
  } else if (value.is_array()) {
    BeginCborArray(value.size(), out);
    for (const Json& item : value) WriteCbor(item, out);
  } else if (value.is_object()) {
    BeginCborMap(value.size(), out);
    for (const auto& [key, member] : value.items()) {
      WriteCborString(key, out);
      WriteCbor(member, out);
    }
  } else {
    Json::to_cbor(value, nlohmann::detail::output_adapter<char>(*out));
  }
}

}  // namespace contraflow
