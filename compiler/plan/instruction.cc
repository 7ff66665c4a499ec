#include "compiler/plan/instruction.h"

#include <charconv>
#include <iterator>
#include <vector>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

constexpr std::string_view kOpNames[] = {
#define CF_OP(name, operands, work) #name,
    CF_OPS(CF_OP)
#undef CF_OP
};

constexpr std::string_view kLaneNames[] = {"",     "compute", "alltoall", "send",
                                           "recv", "reduce",  "offload",  "reload"};

/// Letters of LayerKind.
constexpr std::string_view kKindLetters = "mdp";

constexpr std::string_view kPartNames[] = {"full", "attention", "experts", "all-but-attention"};

/// Text of one instruction, put together before any string grows.
class Text {
 public:
  void Add(std::string_view word) { end_ += word.copy(end_, word.size()); }
  void Add(std::string_view prefix, int value) {
    Add(prefix);
    end_ = std::to_chars(end_, std::end(text_), value).ptr;
  }
  std::string_view view() const { return {text_, static_cast<size_t>(end_ - text_)}; }

 private:
  // No word or prefix is longer than 24 characters, no number than 11.
  char text_[35 * (12 + kMaxAfter)];
  char* end_ = text_;
};

/// Cuts an instruction's text into words and reads them; every error quotes the whole text.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text), rest_(text) {}

  Instruction Parse() {
    Instruction result;
    result.op = ParseOp(Word("an operation"));
    const Operands operands = OperandsOf(result.op);
    result.stage = Letter('s');
    if (operands == Operands::kLayer) {
      const int layer = Letter('l');
      if (layer > INT16_MAX) Fail("layer " + std::to_string(layer) + " is over 32767");
      result.layer = static_cast<int16_t>(layer);
    }
    if (operands != Operands::kStage) result.microbatch = Letter('m');
    if (operands == Operands::kPair) {
      if (Word("\"+\"") != "+") Fail("expected \"+\" between the two cells");
      result.back_stage = Letter('s');
      result.back_microbatch = Letter('m');
    }
    while (!rest_.empty()) Key(&result);
    if (operands == Operands::kMessage && result.peer < 0) {
      Fail("missing the peer (" + std::string(PeerKey(result.op)) + "=RANK)");
    }
    return result;
  }

  static std::string_view PeerKey(Op op) { return WorkOf(op) == Work::kSend ? "to" : "from"; }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    // Hostile text may be long; its beginning is enough to find it.
    std::string quoted(text_.substr(0, 80));
    if (text_.size() > 80) quoted += "...";
    throw Error("instruction \"" + quoted + "\": " + what);
  }

  std::string_view Word(const char* wanted) {
    if (rest_.empty()) Fail(std::string("ends where ") + wanted + " should follow");
    const size_t end = rest_.find(' ');
    const std::string_view word = rest_.substr(0, end);
    if (word.empty()) Fail("words are separated by exactly one space");
    rest_ = end == std::string_view::npos ? std::string_view() : rest_.substr(end + 1);
    if (end != std::string_view::npos && rest_.empty()) Fail("ends with a space");
    return word;
  }

  Op ParseOp(std::string_view word) const {
    for (size_t i = 0; i < std::size(kOpNames); ++i) {
      if (kOpNames[i] == word) return static_cast<Op>(i);
    }
    const std::string name(word.substr(0, 32));
    Fail("unknown operation \"" + name + "\"" + DidYouMean(name, kOpNames));
  }

  int Number(std::string_view digits, std::string_view word) const {
    int value = -1;
    const char* const end = digits.data() + digits.size();
    const auto [at, error] = std::from_chars(digits.data(), end, value);
    // Numbers have one spelling, so that text and instruction correspond one to one.
    const bool canonical =
        !digits.empty() && digits[0] != '-' && (digits.size() == 1 || digits[0] != '0');
    if (error != std::errc() || at != end || value < 0 || !canonical) {
      Fail("\"" + std::string(word.substr(0, 32)) + "\" needs a whole number from 0 to 2147483647");
    }
    return value;
  }

  int Letter(char letter) {
    const char wanted[] = {'"', letter, 'N', '"', '\0'};
    const std::string_view word = Word(wanted);
    if (word[0] != letter) {
      Fail("expected " + std::string(wanted) + ", found \"" + std::string(word.substr(0, 32)) +
           "\"");
    }
    return Number(word.substr(1), word);
  }

  void Set(int* field, std::string_view value, std::string_view word) const {
    if (*field >= 0) Fail("\"" + std::string(word.substr(0, 32)) + "\" repeats a key");
    *field = Number(value, word);
  }

  void Key(Instruction* result) {
    const std::string_view word = Word("a key");
    const size_t equals = word.find('=');
    const std::string_view key = word.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view() : word.substr(equals + 1);
    if (OperandsOf(result->op) == Operands::kMessage && key == PeerKey(result->op)) {
      Set(&result->peer, value, word);
    } else if (key == "part" && result->op == Op::R) {
      if (result->part != RecomputePart::kFull) Fail("\"part\" repeats a key");
      // The whole forward is what R without a part is.
      for (const RecomputePart part : kParts) {
        if (Name(part) == value) result->part = part;
      }
      if (result->part == RecomputePart::kFull) {
        Fail("unknown part \"" + std::string(value.substr(0, 32)) +
             "\"; parts are attention, experts, all-but-attention");
      }
    } else if (key == "layers" && result->op == Op::R) {
      if (result->layers != 0) Fail("\"layers\" repeats a key");
      const int layers = Number(value, word);
      // All of them is what R without layers is.
      if (layers < 1 || layers > INT16_MAX) Fail("\"layers\" must be in 1..32767");
      result->layers = static_cast<int16_t>(layers);
    } else if (key == "group") {
      Set(&result->group, value, word);
    } else if (key == "slot") {
      Set(&result->slot, value, word);
    } else if (key == "lane") {
      if (result->lane != Lane::kNone) Fail("\"lane\" repeats a key");
      for (size_t i = 1; i < std::size(kLaneNames); ++i) {
        if (kLaneNames[i] == value) result->lane = static_cast<Lane>(i);
      }
      if (result->lane == Lane::kNone) {
        Fail("unknown lane \"" + std::string(value.substr(0, 32)) +
             "\"; lanes are compute, alltoall, send, recv, reduce");
      }
    } else if (key == "after") {
      ParseAfter(result, value, word);
    } else {
      const std::string name(key.substr(0, 32));
      std::vector<std::string_view> known = {"group", "slot", "lane", "after"};
      if (OperandsOf(result->op) == Operands::kMessage) known.push_back(PeerKey(result->op));
      if (result->op == Op::R) known.insert(known.begin(), {"part", "layers"});
      Fail("unknown or misplaced key \"" + name + "\"" + DidYouMean(name, known));
    }
  }

  void ParseAfter(Instruction* result, std::string_view list, std::string_view word) const {
    if (result->after_count > 0) Fail("\"after\" repeats a key");
    int last = -1;
    for (;;) {
      const size_t comma = list.find(',');
      const int index = Number(list.substr(0, comma), word);
      if (index <= last) Fail("\"after\" must be ascending");
      if (result->after_count == kMaxAfter) {
        Fail("\"after\" has more than " + std::to_string(kMaxAfter) +
             " entries; one for each other lane is enough");
      }
      result->after[result->after_count++] = last = index;
      if (comma == std::string_view::npos) return;
      list = list.substr(comma + 1);
    }
  }

  std::string_view text_;
  std::string_view rest_;
};

}  // namespace

Instruction CellOp(Op op, int stage, int microbatch) {
  return {.op = op, .stage = stage, .microbatch = microbatch};
}

Instruction RecomputeOp(int stage, int microbatch, const RecomputeExtent& extent) {
  Instruction r = CellOp(Op::R, stage, microbatch);
  r.part = extent.part;
  r.layers = static_cast<int16_t>(extent.layers);
  return r;
}

Instruction Pair(int stage, int microbatch, int back_stage, int back_microbatch) {
  return {.op = Op::FB,
          .stage = stage,
          .microbatch = microbatch,
          .back_stage = back_stage,
          .back_microbatch = back_microbatch};
}

Instruction Message(Op op, int stage, int microbatch, int peer) {
  return {.op = op, .stage = stage, .microbatch = microbatch, .peer = peer};
}

Instruction StageOp(Op op, int stage) { return {.op = op, .stage = stage}; }

std::string_view Name(Op op) {
  CF_ASSERT(static_cast<size_t>(op) < std::size(kOpNames));
  return kOpNames[static_cast<size_t>(op)];
}

std::string_view Name(Lane lane) {
  CF_ASSERT(static_cast<size_t>(lane) < std::size(kLaneNames));
  return kLaneNames[static_cast<size_t>(lane)];
}

Instruction Component(Op op, int stage, int layer, int microbatch) {
  CF_ASSERT(OperandsOf(op) == Operands::kLayer);
  return {.op = op, .layer = static_cast<int16_t>(layer), .stage = stage, .microbatch = microbatch};
}

Lane LaneOf(Op op) {
  constexpr Lane kLanes[] = {Lane::kCompute, Lane::kSend,     Lane::kRecv,
                             Lane::kCompute, Lane::kAllToAll, Lane::kReduce,
                             Lane::kCompute, Lane::kOffload,  Lane::kReload};
  return kLanes[static_cast<size_t>(WorkOf(op))];
}

std::string ToString(const StageLayers& layers) {
  std::string text;
  for (const LayerKind kind : layers) text += kKindLetters[static_cast<size_t>(kind)];
  return text;
}

StageLayers ParseStageLayers(std::string_view text) {
  StageLayers layers;
  for (const char letter : text) {
    const size_t kind = kKindLetters.find(letter);
    if (kind == std::string_view::npos) {
      // A terminal gets no control characters from a file.
      const bool plain = letter >= ' ' && letter <= '~';
      throw Error("layers are m (MoE), d (dense) or p (plain), not \"" +
                  std::string(1, plain ? letter : '?') + "\"");
    }
    layers.push_back(static_cast<LayerKind>(kind));
  }
  return layers;
}

bool Has(LayerKind kind, Op component) {
  if (kind == LayerKind::kMoe) return true;
  if (WorkOf(component) == Work::kAllToAll) return false;
  const Op op = Repeated(component);
  return kind == LayerKind::kDense || (op != Op::MLP_F && op != Op::MLP_B && op != Op::MLP_W);
}

Op ForwardEnd(LayerKind kind) {
  if (kind == LayerKind::kPlain) return Op::ATTN_F;
  return kind == LayerKind::kDense ? Op::MLP_F : Op::COMBINE_F;
}

Op BackwardBegin(LayerKind kind) {
  if (kind == LayerKind::kPlain) return Op::ATTN_B;
  return kind == LayerKind::kDense ? Op::MLP_B : Op::COMBINE_B;
}

Op Repeated(Op op) {
  if (op == Op::R) return Op::F;
  if (op == Op::ATTN_R) return Op::ATTN_F;
  if (op == Op::MLP_R) return Op::MLP_F;
  if (op == Op::DISPATCH_R) return Op::DISPATCH_F;
  return op == Op::COMBINE_R ? Op::COMBINE_F : op;
}

std::string_view Name(RecomputePart part) {
  CF_ASSERT(static_cast<size_t>(part) < std::size(kPartNames));
  return kPartNames[static_cast<size_t>(part)];
}

bool RecomputeExtent::Has(Op op, int layer, LayerKind kind) const {
  if (layers != 0 && layer >= layers) return false;
  if (kind == LayerKind::kPlain && part != RecomputePart::kFull) return false;
  return Includes(part, op) && contraflow::Has(kind, op);
}

std::string ToString(const RecomputeExtent& extent) {
  std::string text(Name(extent.part));
  if (extent.layers == 0) return text;
  const std::string first =
      "the first " + (extent.layers == 1 ? "layer" : std::to_string(extent.layers) + " layers");
  return extent.part == RecomputePart::kFull ? first : text + " of " + first;
}

bool Includes(RecomputePart part, Op op) {
  if (part == RecomputePart::kAttention) return op == Op::ATTN_R;
  if (part == RecomputePart::kExperts) return op == Op::MLP_R;
  return part == RecomputePart::kFull || op != Op::ATTN_R;
}

Op FirstOf(RecomputePart part) {
  if (part == RecomputePart::kExperts) return Op::MLP_R;
  return part == RecomputePart::kAllButAttention ? Op::DISPATCH_R : Op::ATTN_R;
}

bool IsForwardComponent(Op op) {
  const Op first = Repeated(op);
  return first == Op::ATTN_F || first == Op::DISPATCH_F || first == Op::MLP_F ||
         first == Op::COMBINE_F;
}

void Append(const Instruction& i, std::string* out) {
  Text text;
  text.Add(Name(i.op));
  text.Add(" s", i.stage);
  const Operands operands = OperandsOf(i.op);
  if (operands == Operands::kLayer) text.Add(" l", i.layer);
  if (operands != Operands::kStage) text.Add(" m", i.microbatch);
  if (operands == Operands::kPair) {
    text.Add(" + s", i.back_stage);
    text.Add(" m", i.back_microbatch);
  }
  if (operands == Operands::kMessage) {
    text.Add(WorkOf(i.op) == Work::kSend ? " to=" : " from=", i.peer);
  }
  if (i.part != RecomputePart::kFull) {
    text.Add(" part=");
    text.Add(Name(i.part));
  }
  if (i.layers != 0) text.Add(" layers=", i.layers);
  if (i.group >= 0) text.Add(" group=", i.group);
  if (i.slot >= 0) text.Add(" slot=", i.slot);
  if (i.lane != Lane::kNone) {
    text.Add(" lane=");
    text.Add(Name(i.lane));
  }
  for (int k = 0; k < i.after_count; ++k) {
    text.Add(k == 0 ? " after=" : ",", i.after[static_cast<size_t>(k)]);
  }
  out->append(text.view());
}

std::string ToString(const Instruction& i) {
  std::string text;
  Append(i, &text);
  return text;
}

Instruction ParseInstruction(std::string_view text) { return Parser(text).Parse(); }

}  // namespace contraflow
