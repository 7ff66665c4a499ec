#include <array>
#include <charconv>
#include <tuple>

#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"
#include "tools/profile/samples.h"

namespace contraflow {
namespace {

/// Takes a number off the front; false if there is none that a plan could have.
bool TakeIndex(std::string_view* text, int limit, int* number) {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *number);
  if (error != std::errc() || *number < 0 || *number >= limit) return false;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return true;
}

struct ActionName {
  std::string_view name;
  Op op;
};
constexpr std::array<ActionName, 8> kActions = {{{"SEND_F", Op::SEND_F},
                                                 {"RECV_F", Op::RECV_F},
                                                 {"SEND_B", Op::SEND_B},
                                                 {"RECV_B", Op::RECV_B},
                                                 {"F", Op::F},
                                                 {"I", Op::B},
                                                 {"W", Op::W},
                                                 {"B", Op::BW}}};

/// "3F7", whole.
std::optional<Instruction> ParseAction(std::string_view text) {
  Instruction what;
  if (!TakeIndex(&text, kMaxStages, &what.stage)) return std::nullopt;
  for (const ActionName& action : kActions) {
    std::string_view rest = text;
    if (!rest.starts_with(action.name)) continue;
    rest.remove_prefix(action.name.size());
    if (!TakeIndex(&rest, kMaxMicrobatches, &what.microbatch) || !rest.empty()) continue;
    what.op = action.op;
    return what;
  }
  return std::nullopt;
}

/// "(3F7;4B2)OVERLAP_F_B"
std::optional<Instruction> ParseActionPair(std::string_view text) {
  constexpr std::string_view kPair = ")OVERLAP_F_B";
  const size_t middle = text.find(';');
  if (!text.starts_with('(') || !text.ends_with(kPair) || middle == std::string_view::npos) {
    return std::nullopt;
  }
  const auto first = ParseAction(text.substr(1, middle - 1));
  const auto second = ParseAction(text.substr(middle + 1, text.size() - kPair.size() - middle - 1));
  if (!first || !second || first->op != Op::F || second->op != Op::BW) return std::nullopt;
  return Pair(first->stage, first->microbatch, second->stage, second->microbatch);
}

/// "attn(F)"
std::optional<Instruction> ParseComponent(std::string_view text) {
  if (text.size() < 4 || text[text.size() - 3] != '(' || text.back() != ')') return std::nullopt;
  std::string name;
  for (const char c : text.substr(0, text.size() - 3)) {
    name += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  name += "_";
  name += text[text.size() - 2];
  for (const ComponentCost& component : kComponentCosts) {
    if (name == Name(component.op)) return Component(component.op, -1, -1, -1);
  }
  return std::nullopt;
}

/// "F s0 m3"
std::optional<Instruction> ParseOwn(std::string_view text) {
  // Most names are of other things, and an Error each would take long.
  const std::string_view word = text.substr(0, text.find(' '));
  bool known = false;
  for (int op = 0; op < kOpCount && !known; ++op) known = word == Name(static_cast<Op>(op));
  if (!known || word.size() == text.size()) return std::nullopt;
  try {
    return ParseInstruction(text);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::string_view TrimBlanks(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

std::optional<Instruction> ParseRange(std::string_view name) {
  name = TrimBlanks(name);
  // nsys puts the domain and a colon before it; that of most ranges has no name.
  if (name.starts_with(':')) name.remove_prefix(1);
  if (name.starts_with("PP:")) {
    name.remove_prefix(3);
    const auto action = ParseAction(name);
    return action ? action : ParseActionPair(name);
  }
  const auto component = ParseComponent(name);
  return component ? component : ParseOwn(name);
}

std::optional<Instruction> ParseOneStage(std::string_view name, int stage) {
  const bool forward = name.starts_with("Forward ");
  if (!forward && !name.starts_with("Backward ")) return std::nullopt;
  name.remove_prefix(name.find(' ') + 1);
  int microbatch = 0;
  if (!TakeIndex(&name, kMaxMicrobatches, &microbatch) || !name.empty()) return std::nullopt;
  return CellOp(forward ? Op::F : Op::BW, stage, microbatch);
}

void AddUnmapped(std::string_view name, FileSamples* file) {
  constexpr size_t kMostNames = 1000, kMostBytes = 80;
  std::string shown;
  for (const char c : name.substr(0, kMostBytes)) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit || !shown.ends_with('#')) shown += digit ? '#' : c;
  }
  auto& names = file->unmapped;
  if (names.size() >= kMostNames && !names.contains(shown)) shown = "others";
  ++names[shown];
}

void NumberSteps(FileSamples* file) {
  const auto number = [](auto* entries) {
    std::map<std::tuple<Op, int, int, int, int, int>, int> seen;
    for (auto& entry : *entries) {
      const Instruction& i = entry.what;
      if (i.microbatch < 0) {
        entry.step = -1;
        continue;
      }
      entry.step = seen[{i.op, i.stage, i.microbatch, i.back_stage, i.back_microbatch, i.layer}]++;
    }
  };
  number(&file->samples);
  number(&file->messages);
}

}  // namespace contraflow
