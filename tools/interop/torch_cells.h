#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "compiler/plan/mark.h"

/// Cells of PyTorch's CSV, and the text around them.
namespace contraflow::torch_csv {

/// Type of an action in PyTorch, without OVERLAP_F_B, which stands after a pair.
enum class Type : uint8_t {
  kF,
  kI,
  kW,
  kB,
  kSendF,
  kRecvF,
  kSendB,
  kRecvB,
  kUnshard,
  kReshard,
  kReduceGrad,
  kWaitSendF,
  kWaitSendB,
  kWaitReduceGrad
};

inline bool IsCompute(Type type) { return type <= Type::kB; }
inline bool IsMessage(Type type) { return type >= Type::kSendF && type <= Type::kRecvB; }
inline bool HasMicrobatch(Type type) {
  return type <= Type::kRecvB || type == Type::kWaitSendF || type == Type::kWaitSendB;
}

/// Mark of a cell that is no instruction.
MarkKind MarkOf(Type type);

struct Place {
  int row = -1, column = -1;
};

/// Part of an instruction, or a message.
struct Action {
  Type type = Type::kF;
  std::string_view name = {};  ///< that of the file for its type
  int stage = -1, microbatch = -1;
  Place place;

  std::string Text() const {
    return std::to_string(stage) + std::string(name) +
           (HasMicrobatch(type) ? std::to_string(microbatch) : "");
  }
};

/// "row 2, column 5"
std::string Text(Place place);
/// Throws Error "FILE: row 2, column 5: WHAT".
[[noreturn]] void FailAt(const std::string& file, Place place, const std::string& what);

/// Reads the action `text`, which is a part of `cell` or all of it. With `old` letters B is the
/// input gradient (HasOldLetters). Throws Error that begins with the file and the place.
Action ReadAction(std::string_view text, std::string_view cell, Place place, bool old,
                  const std::string& file);

/// In quotes, at most 64 bytes, whatever they are.
std::string Shown(std::string_view cell);
/// The text without the spaces around it.
std::string_view Trimmed(std::string_view text);

/// True where B is the input gradient: there is a BW, or a W without any I or pair.
bool HasOldLetters(std::string_view text);
/// The rows of Python's lists, as PyTorch prints them: "{0: [0F0, None], 1: [..]}", a list a line
/// or a list of lists. Throws Error for a rank out of turn and for text that is in no list.
std::string RowsOfLists(std::string_view text, const std::string& file);

}  // namespace contraflow::torch_csv
