#include "compiler/plan/value.h"

#include <algorithm>
#include <charconv>

#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"

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

Accesses::Accesses(const Plan& plan)
    : plan_(plan), route_of_(RouteOfMicrobatch(plan)), last_layer_(std::max(plan.layers, 1) - 1) {}

bool Accesses::SameRank(int stage, int other, int microbatch) const {
  const int route = route_of_[static_cast<size_t>(microbatch)];
  const std::vector<int>& ranks = plan_.routes[static_cast<size_t>(route)].ranks;
  return ranks[static_cast<size_t>(stage)] == ranks[static_cast<size_t>(other)];
}

void Accesses::Of(const Instruction& i, std::vector<Access>* accesses) const {
  accesses->clear();
  const auto whole = static_cast<int16_t>(plan_.layers > 0 ? 0 : -1);
  const auto last = static_cast<int16_t>(plan_.layers > 0 ? last_layer_ : -1);
  switch (i.op) {
    case Op::SEND_F:
      return accesses->push_back({Value::output, last, i.stage, i.microbatch, false});
    case Op::RECV_F:
      return accesses->push_back({Value::input, whole, i.stage, i.microbatch, true});
    case Op::SEND_B:
      return accesses->push_back({Value::dinput, whole, i.stage, i.microbatch, false});
    case Op::RECV_B:
      return accesses->push_back({Value::doutput, last, i.stage, i.microbatch, true});
    case Op::ATTN_F:
    case Op::DISPATCH_F:
    case Op::MLP_F:
    case Op::COMBINE_F:
    case Op::ATTN_R:
    case Op::DISPATCH_R:
    case Op::MLP_R:
    case Op::COMBINE_R:
      return Forward(i, accesses);
    case Op::COMBINE_B:
    case Op::MLP_B:
    case Op::MLP_W:
    case Op::DISPATCH_B:
    case Op::ATTN_B:
    case Op::ATTN_W:
      return Backward(i, accesses);
    case Op::F:
    case Op::B:
    case Op::W:
    case Op::BW:
    case Op::FB:
    case Op::R:
      return Chunk(i, accesses);
    case Op::REDUCE:
    case Op::STEP:
      return;  // parameters and gradients are not values of a step
  }
}

// The order inside a layer: ATTN_F, DISPATCH_F, MLP_F, COMBINE_F. What runs again makes all of it
// again but for the input of the stage, which was kept, and what the next stage has got.
void Accesses::Forward(const Instruction& i, std::vector<Access>* accesses) const {
  const auto touch = [&](Value value, bool makes) {
    accesses->push_back({value, i.layer, i.stage, i.microbatch, makes});
  };
  const bool again = IsRecompute(i.op);
  const Op op = Repeated(i.op);
  if (op == Op::ATTN_F) {
    const bool embedding = i.stage == 0 && i.layer == 0;  // makes the input of the first layer
    touch(Value::input, embedding && !again);
    touch(Value::attention, true);
    touch(Value::scores, true);
    touch(Value::dispatched, true);
  } else if (op == Op::DISPATCH_F) {
    touch(Value::dispatched, false);
    touch(Value::scores, false);
    touch(Value::rows, true);
  } else if (op == Op::MLP_F) {
    touch(Value::rows, false);
    touch(Value::gate, true);
    touch(Value::hidden, true);
    touch(Value::expert_out, true);
  } else {
    touch(Value::expert_out, false);
    touch(Value::rows, false);
    touch(Value::scores, false);
    touch(Value::attention, false);
    touch(Value::combined, true);
    if (i.layer < last_layer_) {
      const auto next = static_cast<int16_t>(i.layer + 1);
      accesses->push_back({Value::input, next, i.stage, i.microbatch, true});
    } else if (i.stage + 1 == plan_.stages) {
      touch(Value::output, true);
      touch(Value::head, true);
    } else if (again) {
      return;
    } else if (SameRank(i.stage, i.stage + 1, i.microbatch)) {
      accesses->push_back({Value::input, 0, i.stage + 1, i.microbatch, true});
    } else {
      touch(Value::output, true);
    }
  }
}

// The order inside a layer: COMBINE_B, MLP_B, DISPATCH_B, ATTN_B; MLP_W somewhere behind MLP_B,
// ATTN_W behind ATTN_B.
void Accesses::Backward(const Instruction& i, std::vector<Access>* accesses) const {
  const auto touch = [&](Value value, bool makes) {
    accesses->push_back({value, i.layer, i.stage, i.microbatch, makes});
  };
  const bool head = i.layer == last_layer_ && i.stage + 1 == plan_.stages;
  if (i.op == Op::COMBINE_B) {
    touch(Value::doutput, head);  // of the last layer made by the head
    if (head) {
      touch(Value::output, false);
      touch(Value::head, false);
    }
    touch(Value::combined, false);
    touch(Value::scores, false);
    touch(Value::rows, false);
    touch(Value::dcombined, true);
    touch(Value::dweight, true);
    touch(Value::drows, true);
  } else if (i.op == Op::MLP_B) {
    touch(Value::drows, false);
    touch(Value::rows, false);
    touch(Value::gate, false);
    touch(Value::dgate, true);
    touch(Value::dsorted, true);
  } else if (i.op == Op::MLP_W) {
    touch(Value::rows, false);
    touch(Value::hidden, false);
    touch(Value::drows, false);
    touch(Value::dgate, false);
    if (head) {
      touch(Value::output, false);
      touch(Value::head, false);
    }
  } else if (i.op == Op::DISPATCH_B) {
    touch(Value::dsorted, false);
    touch(Value::rows, false);
    touch(Value::scores, false);
    touch(Value::ddispatched, true);
    touch(Value::dexpert, true);
  } else if (i.op == Op::ATTN_B) {
    touch(Value::doutput, false);
    touch(Value::dexpert, false);
    touch(Value::dweight, false);
    touch(Value::scores, false);
    touch(Value::attention, false);
    touch(Value::input, false);
    touch(Value::attention_work, true);
    touch(Value::dattention, true);
    if (i.layer > 0) {
      const auto before = static_cast<int16_t>(i.layer - 1);
      accesses->push_back({Value::doutput, before, i.stage, i.microbatch, true});
    } else if (i.stage > 0 && SameRank(i.stage, i.stage - 1, i.microbatch)) {
      const auto last = static_cast<int16_t>(last_layer_);
      accesses->push_back({Value::doutput, last, i.stage - 1, i.microbatch, true});
    } else {
      touch(Value::dinput, true);
    }
  } else {
    touch(Value::input, false);
    touch(Value::attention, false);
    touch(Value::dexpert, false);
    touch(Value::dattention, false);
    if (i.layer == 0 && i.stage == 0) touch(Value::dinput, false);  // of the embedding
  }
}

void Accesses::Chunk(const Instruction& i, std::vector<Access>* accesses) const {
  const auto touch = [&](Value value, int stage, int m, bool makes) {
    accesses->push_back({value, -1, stage, m, makes});
  };
  if (HasForward(i.op)) {
    const int s = i.stage, m = i.microbatch;
    if (s > 0) touch(Value::input, s, m, false);
    touch(Value::activation, s, m, true);
    touch(Value::stash, s, m, true);
    if (s + 1 < plan_.stages) {
      if (SameRank(s, s + 1, m)) {
        touch(Value::input, s + 1, m, true);
      } else {
        touch(Value::output, s, m, true);
      }
    }
  }
  if (i.op == Op::R) {
    if (i.stage > 0) touch(Value::input, i.stage, i.microbatch, false);
    touch(Value::activation, i.stage, i.microbatch, true);
    touch(Value::stash, i.stage, i.microbatch, true);
  }
  if (!HasBackward(i.op) && !HasWeight(i.op)) return;
  const int s = BackStage(i), m = BackMicrobatch(i);
  touch(Value::stash, s, m, false);
  if (!HasBackward(i.op)) return;
  touch(Value::activation, s, m, false);
  if (s + 1 < plan_.stages) touch(Value::doutput, s, m, false);
  if (s > 0) {
    if (SameRank(s, s - 1, m)) {
      touch(Value::doutput, s - 1, m, true);
    } else {
      touch(Value::dinput, s, m, true);
    }
  }
}

ValueBytes ValueBytesOf(const CostModel& costs, int layers) {
  ValueBytes bytes{};
  if (layers > 0) {
    if (!costs.memory || costs.memory->values.empty()) {
      throw Error(
          "the costs do not say how large the values of a layer are; give \"memory\": "
          "{\"values\": {..}}, or name the model with `model`");
    }
    CF_ASSERT(costs.memory->values.size() == kValueCount);
    std::copy(costs.memory->values.begin(), costs.memory->values.end(), bytes.begin());
    return bytes;
  }
  if (!costs.memory) {
    throw Error(
        "the costs do not say how large activations are; give \"memory\": "
        "{\"activation_bytes\": .., \"w_stash_bytes\": ..}");
  }
  const auto at = [&](Value value) -> int64_t& { return bytes[static_cast<size_t>(value)]; };
  at(Value::activation) = costs.memory->activation_bytes - costs.memory->w_stash_bytes;
  at(Value::stash) = costs.memory->w_stash_bytes;
  for (const Value message : {Value::input, Value::output, Value::doutput, Value::dinput}) {
    at(message) = costs.comm.bytes;
  }
  return bytes;
}

std::array<int64_t, kArenaCount> ArenaBytes(const std::vector<Slot>& slots) {
  std::array<int64_t, kArenaCount> bytes{};
  for (const Slot& slot : slots) {
    int64_t& arena = bytes[static_cast<size_t>(slot.arena)];
    arena = std::max(arena, slot.offset + slot.bytes);
  }
  return bytes;
}

}  // namespace contraflow
