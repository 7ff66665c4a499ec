#include "tools/interop/torch_cells.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <optional>

#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"

namespace contraflow::torch_csv {
namespace {

/// Names in the order of Type, and those of the first types before December 2024.
constexpr std::string_view kNames[] = {"F",           "I",
                                       "W",           "B",
                                       "SEND_F",      "RECV_F",
                                       "SEND_B",      "RECV_B",
                                       "UNSHARD",     "RESHARD",
                                       "REDUCE_GRAD", "WAIT_SEND_F",
                                       "WAIT_SEND_B", "WAIT_REDUCE_GRAD"};
constexpr std::string_view kOldNames[] = {"F", "B", "W", "BW"};

std::string_view NameOf(Type type, bool old) {
  const auto number = static_cast<size_t>(type);
  return old && number < std::size(kOldNames) ? kOldNames[number] : kNames[number];
}

std::optional<Type> TypeOf(std::string_view name, bool old) {
  for (size_t number = 0; number < std::size(kNames); ++number) {
    const auto type = static_cast<Type>(number);
    if (NameOf(type, old) == name) return type;
  }
  return std::nullopt;
}

/// The number that `text` begins with, cut off; too large ones come back as the largest int.
std::optional<int> TakeNumber(std::string_view* text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error == std::errc::invalid_argument || text->starts_with('-')) return {};
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return error == std::errc() ? number : std::numeric_limits<int>::max();
}

}  // namespace

MarkKind MarkOf(Type type) {
  constexpr MarkKind kMarks[] = {MarkKind::kUnshard,    MarkKind::kReshard,
                                 MarkKind::kReduceGrad, MarkKind::kWaitSendF,
                                 MarkKind::kWaitSendB,  MarkKind::kWaitReduceGrad};
  return kMarks[static_cast<size_t>(type) - static_cast<size_t>(Type::kUnshard)];
}

std::string Text(Place place) {
  return "row " + std::to_string(place.row + 1) + ", column " + std::to_string(place.column + 1);
}

void FailAt(const std::string& file, Place place, const std::string& what) {
  throw Error(file + ": " + Text(place) + ": " + what);
}

Action ReadAction(std::string_view text, std::string_view cell, Place place, bool old,
                  const std::string& file) {
  Action action;
  action.place = place;
  const std::optional<int> stage = TakeNumber(&text);
  const size_t length = std::min(text.size(), text.find_first_of("0123456789"));
  const std::optional<Type> type = TypeOf(text.substr(0, length), old);
  if (!stage || !type) {
    FailAt(file, place,
           Shown(cell) + ": is not an action; an action is a stage, one of F " +
               (old ? "B W BW" : "I W B") +
               " SEND_F RECV_F SEND_B RECV_B WAIT_SEND_F WAIT_SEND_B and a micro-batch, as "
               "in 2F0, or a stage and one of UNSHARD RESHARD REDUCE_GRAD WAIT_REDUCE_GRAD");
  }
  text.remove_prefix(length);
  action.type = *type;
  action.name = NameOf(*type, old);
  action.stage = *stage;
  if (*stage >= kMaxStages) {
    FailAt(file, place,
           Shown(cell) + ": the stage must be in 0.." + std::to_string(kMaxStages - 1));
  }
  if (HasMicrobatch(action.type)) {
    const std::optional<int> microbatch = TakeNumber(&text);
    if (!microbatch || *microbatch >= kMaxMicrobatches) {
      FailAt(file, place,
             Shown(cell) + ": " + std::string(action.name) +
                 " needs a micro-batch after it, in 0.." + std::to_string(kMaxMicrobatches - 1));
    }
    action.microbatch = *microbatch;
  }
  if (!text.empty()) {
    FailAt(file, place,
           Shown(cell) + ": continues after " + action.Text() + " with " + Shown(text));
  }
  return action;
}

std::string Shown(std::string_view cell) {
  std::string text = "\"";
  for (const char c : cell.substr(0, 64)) {
    if (c >= ' ' && c <= '~' && c != '"' && c != '\\') {
      text += c;
      continue;
    }
    constexpr std::string_view kDigits = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    text += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text + (cell.size() > 64 ? "...\"" : "\"");
}

std::string_view Trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

bool HasOldLetters(std::string_view text) {
  bool weight = false, input = text.find('(') != std::string_view::npos;
  for (size_t i = 1; i + 1 < text.size(); ++i) {
    const auto digit = [&](size_t at) { return text[at] >= '0' && text[at] <= '9'; };
    if (!digit(i - 1)) continue;
    if (text.substr(i, 2) == "BW") return true;
    weight = weight || (text[i] == 'W' && digit(i + 1));
    input = input || (text[i] == 'I' && digit(i + 1));
  }
  return weight && !input;
}

std::string RowsOfLists(std::string_view text, const std::string& file) {
  std::string rows;
  int row = 0;
  const auto between = [&](std::string_view part) {
    const size_t other = part.find_first_not_of(" \t\r\n,:{}[]Rrank0123456789");
    if (other != std::string_view::npos) {
      throw Error(file + ": has " + Shown(part.substr(other)) +
                  " outside of its lists, one per rank");
    }
    const size_t digit = part.find_first_of("0123456789");
    int rank = row;
    if (digit == std::string_view::npos) return;
    std::from_chars(part.data() + digit, part.data() + part.size(), rank);
    if (rank == row) return;
    throw Error(file + ": list " + std::to_string(row + 1) + " is of rank " + std::to_string(rank) +
                "; lists must be in the order of their ranks");
  };
  size_t close = text.find(']');
  while (close != std::string_view::npos) {
    const size_t open = text.rfind('[', close);
    if (open == std::string_view::npos) break;  // the end of a list of lists
    between(text.substr(0, open));
    std::string line(text.substr(open + 1, close - open - 1));
    std::replace(line.begin(), line.end(), '\n', ' ');
    rows += (line.empty() ? "," : line) + "\n";
    ++row;
    text.remove_prefix(close + 1);
    close = text.find(']');
  }
  if (text.find('[') != std::string_view::npos) throw Error(file + ": ends within a list");
  between(text);
  return rows;
}

}  // namespace contraflow::torch_csv
