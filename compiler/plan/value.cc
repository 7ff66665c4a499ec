#include "compiler/plan/value.h"

#include <algorithm>
#include <charconv>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

struct ValueRow {
  std::string_view name;
  Arena arena;
};
constexpr ValueRow kValues[] = {
#define CF_VALUE(name, arena) {#name, Arena::arena},
    CF_VALUES(CF_VALUE)
#undef CF_VALUE
};
constexpr std::string_view kArenas[] = {"activation", "stash", "gradient", "exchange"};
static_assert(std::size(kArenas) == kArenaCount);

/// Reads the words of a slot, left to right.
class SlotParser {
 public:
  explicit SlotParser(std::string_view text) : text_(text) {}

  Slot Parse() {
    Slot slot;
    const std::string_view name = Word();
    const auto row = std::find_if(std::begin(kValues), std::end(kValues),
                                  [&](const ValueRow& r) { return r.name == name; });
    if (row == std::end(kValues)) {
      std::vector<std::string_view> names;
      for (const ValueRow& r : kValues) names.push_back(r.name);
      Fail("unknown value \"" + std::string(name.substr(0, 32)) + "\"" +
           DidYouMean(std::string(name.substr(0, 32)), names));
    }
    slot.value = static_cast<Value>(row - std::begin(kValues));
    slot.stage = Number<int32_t>(Word(), "s");
    std::string_view word = Word();
    if (word.starts_with("l")) {
      slot.layer = Number<int16_t>(word, "l");
      word = Word();
    }
    slot.microbatch = Number<int32_t>(word, "m");
    slot.arena = ParseArena(Word());
    slot.offset = Number<int64_t>(Word(), "offset=");
    slot.bytes = Number<int64_t>(Word(), "bytes=");
    slot.first = Number<int32_t>(Word(), "first=");
    slot.last = Number<int32_t>(Word(), "last=");
    if (!text_.empty()) Fail("unexpected text behind \"last\"");
    return slot;
  }

 private:
  [[noreturn]] static void Fail(const std::string& what) {
    throw Error(what +
                "; a slot is written like \"gate s3 l0 m7 arena=activation offset=128 bytes=4096 "
                "first=3 last=17\"");
  }

  /// The next word; words are separated by one space.
  std::string_view Word() {
    if (text_.empty()) Fail("the slot ends too early");
    const size_t end = std::min(text_.find(' '), text_.size());
    const std::string_view word = text_.substr(0, end);
    const bool more = end < text_.size();
    text_.remove_prefix(more ? end + 1 : end);
    if (more && text_.empty()) Fail("the slot ends with a space");
    return word;
  }

  template <typename Integer>
  static Integer Number(std::string_view word, std::string_view key) {
    const std::string_view digits = word.starts_with(key) ? word.substr(key.size()) : "";
    Integer number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    const bool canonical = digits == "0" || (!digits.empty() && digits[0] >= '1');
    if (error != std::errc() || end != digits.data() + digits.size() || !canonical) {
      Fail("must have \"" + std::string(key) + "\" and a number >= 0 that fits, has \"" +
           std::string(word.substr(0, 32)) + "\"");
    }
    return number;
  }

  static Arena ParseArena(std::string_view word) {
    for (size_t i = 0; i < kArenaCount; ++i) {
      if (word == "arena=" + std::string(kArenas[i])) return static_cast<Arena>(i);
    }
    Fail("unknown arena \"" + std::string(word.substr(0, 32)) +
         "\"; arenas are activation, stash, gradient, exchange");
  }

  std::string_view text_;
};

}  // namespace

std::string_view Name(Value value) {
  CF_ASSERT(static_cast<size_t>(value) < kValueCount);
  return kValues[static_cast<size_t>(value)].name;
}

std::string_view Name(Arena arena) {
  CF_ASSERT(static_cast<size_t>(arena) < kArenaCount);
  return kArenas[static_cast<size_t>(arena)];
}

Arena ArenaOf(Value value) {
  CF_ASSERT(static_cast<size_t>(value) < kValueCount);
  return kValues[static_cast<size_t>(value)].arena;
}

std::string ToString(const Slot& slot) {
  std::string text(Name(slot.value));
  text += " s" + std::to_string(slot.stage);
  if (slot.layer >= 0) text += " l" + std::to_string(slot.layer);
  text += " m" + std::to_string(slot.microbatch);
  text.append(" arena=").append(Name(slot.arena));
  text += " offset=" + std::to_string(slot.offset) + " bytes=" + std::to_string(slot.bytes) +
          " first=" + std::to_string(slot.first) + " last=" + std::to_string(slot.last);
  return text;
}

Slot ParseSlot(std::string_view text) { return SlotParser(text).Parse(); }

std::array<int64_t, kArenaCount> ArenaBytes(const std::vector<Slot>& slots) {
  std::array<int64_t, kArenaCount> bytes{};
  for (const Slot& slot : slots) {
    int64_t& arena = bytes[static_cast<size_t>(slot.arena)];
    arena = std::max(arena, slot.offset + slot.bytes);
  }
  return bytes;
}

}  // namespace contraflow
