#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/plan.h"
#include "tools/interop/interop.h"

// Strict where PyTorch is lenient: its reader takes "1F0xyz" for 1F0, and its check knows neither
// duplicates nor micro-batches that are missing on one stage only.

namespace contraflow {
namespace {

/// What PyTorch calls an action, without OVERLAP_F_B, which stands behind a pair.
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

struct TypeName {
  std::string_view name;
  Type type;
};
/// PyTorch's letters before December 2024; the other names are the same.
constexpr std::array<TypeName, 4> kOldTypes = {
    {{"F", Type::kF}, {"B", Type::kI}, {"W", Type::kW}, {"BW", Type::kB}}};
constexpr std::array<TypeName, 14> kTypes = {{{"F", Type::kF},
                                              {"I", Type::kI},
                                              {"W", Type::kW},
                                              {"B", Type::kB},
                                              {"SEND_F", Type::kSendF},
                                              {"RECV_F", Type::kRecvF},
                                              {"SEND_B", Type::kSendB},
                                              {"RECV_B", Type::kRecvB},
                                              {"UNSHARD", Type::kUnshard},
                                              {"RESHARD", Type::kReshard},
                                              {"REDUCE_GRAD", Type::kReduceGrad},
                                              {"WAIT_SEND_F", Type::kWaitSendF},
                                              {"WAIT_SEND_B", Type::kWaitSendB},
                                              {"WAIT_REDUCE_GRAD", Type::kWaitReduceGrad}}};
constexpr std::string_view kPair = "OVERLAP_F_B";
constexpr const char* kOldLetters =
    "B is read as the input gradient and BW as the full backward, as PyTorch wrote them before "
    "December 2024, since it has W or BW and no I";
/// What Windows puts before UTF-8.
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool IsCompute(Type type) { return type <= Type::kB; }
bool IsMessage(Type type) { return type >= Type::kSendF && type <= Type::kRecvB; }
bool HasMicrobatch(Type type) {
  return type <= Type::kRecvB || type == Type::kWaitSendF || type == Type::kWaitSendB;
}

/// Of a cell that is no instruction.
MarkKind MarkOf(Type type) {
  constexpr MarkKind kMarks[] = {MarkKind::kUnshard,    MarkKind::kReshard,
                                 MarkKind::kReduceGrad, MarkKind::kWaitSendF,
                                 MarkKind::kWaitSendB,  MarkKind::kWaitReduceGrad};
  return kMarks[static_cast<size_t>(type) - static_cast<size_t>(Type::kUnshard)];
}

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

std::string Text(Place place) {
  return "row " + std::to_string(place.row + 1) + ", column " + std::to_string(place.column + 1);
}

/// In quotes, at most 64 bytes, whatever they are.
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

/// True where B is the input gradient: there is a BW, or a W without any I or pair.
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

/// The rows of Python's lists, as PyTorch prints them: "{0: [0F0, None], 1: [..]}", a list a line
/// or a list of lists. Throws Error for a rank out of turn and for text that is in no list.
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

class Reader {
 public:
  Reader(std::string_view text, const std::string& place)
      : text_(text), file_(place), old_(HasOldLetters(text)) {}

  Plan Read(TorchCsvNotes* notes) {
    while (text_.find_first_not_of(" \t\r\n") != std::string_view::npos) ReadRow();
    if (plan_.programs.empty()) throw Error(file_ + ": is empty; it must have one row per rank");
    plan_.ranks = static_cast<int>(plan_.programs.size());
    FindStages();
    CheckChunks();
    FinishHead();
    if (ForwardsAlone()) AddBackwards();
    FinishMessages();
    if (notes != nullptr) TakeNotes(notes);
    return std::move(plan_);
  }

 private:
  [[noreturn]] void Fail(Place place, const std::string& what) const {
    throw Error(file_ + ": " + Text(place) + ": " + what);
  }

  void ReadRow() {
    const int row = static_cast<int>(plan_.programs.size());
    if (row == kMaxRanks) {
      throw Error(file_ + ": has more than " + std::to_string(kMaxRanks) +
                  " rows, one per rank; no plan has more ranks");
    }
    const size_t end = text_.find('\n');
    std::string_view line = text_.substr(0, end);
    text_.remove_prefix(end == std::string_view::npos ? text_.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    plan_.programs.emplace_back();
    plan_.marks.emplace_back();
    for (Place place{row, 0};; ++place.column) {
      const size_t comma = line.find(',');
      ReadCell(line.substr(0, comma), place);
      if (comma == std::string_view::npos) break;
      line.remove_prefix(comma + 1);
    }
    if (plan_.programs.back().empty()) {
      throw Error(file_ + ": row " + std::to_string(row + 1) +
                  " has no action; every row is a rank, which has at least one stage");
    }
  }

  void ReadCell(std::string_view cell, Place place) {
    if (cell.size() >= 2 && cell.starts_with('"') && cell.ends_with('"')) {
      cell = cell.substr(1, cell.size() - 2);
    }
    cell = Trimmed(cell);
    if (cell.empty() || cell == "None") return AddIdle();
    ++cells_;
    if (cell.starts_with('(')) return ReadPair(cell, place);
    const Action action = ReadAction(cell, cell, place);
    Program& program = plan_.programs.back();
    if (IsCompute(action.type)) {
      constexpr Op kOps[] = {Op::F, Op::B, Op::W, Op::BW};
      const Op op = kOps[static_cast<size_t>(action.type)];
      program.push_back(CellOp(op, action.stage, action.microbatch));
      Keep(action);
    } else if (IsMessage(action.type)) {
      constexpr Op kOps[] = {Op::SEND_F, Op::RECV_F, Op::SEND_B, Op::RECV_B};
      const Op op = kOps[static_cast<size_t>(action.type) - static_cast<size_t>(Type::kSendF)];
      messages_.push_back({action, program.size()});
      program.push_back(Message(op, action.stage, action.microbatch, -1));
    } else {
      AddMark(
          {.kind = MarkOf(action.type), .stage = action.stage, .microbatch = action.microbatch});
      if (HasMicrobatch(action.type)) {
        waits_.push_back(action);
      } else {
        ++sharded_;
      }
    }
  }

  void AddMark(Mark mark) {
    mark.before = static_cast<int32_t>(plan_.programs.back().size());
    plan_.marks.back().push_back(mark);
    marked_ = true;
  }

  void AddIdle() {
    std::vector<Mark>& marks = plan_.marks.back();
    if (!marks.empty() && marks.back().kind == MarkKind::kIdle &&
        marks.back().before == static_cast<int32_t>(plan_.programs.back().size()) &&
        marks.back().count < std::numeric_limits<int32_t>::max()) {
      ++marks.back().count;
    } else {
      AddMark({});
    }
  }

  /// "(0F7;7B3)OVERLAP_F_B"
  void ReadPair(std::string_view cell, Place place) {
    const size_t close = cell.find(')');
    const std::string_view inside =
        cell.substr(1, close == std::string_view::npos ? close : close - 1);
    const size_t semicolon = inside.find(';');
    if (close == std::string_view::npos || Trimmed(cell.substr(close + 1)) != kPair ||
        semicolon == std::string_view::npos ||
        inside.find(';', semicolon + 1) != std::string_view::npos) {
      Fail(place, Shown(cell) + ": a pair is written (0F7;7B3)OVERLAP_F_B");
    }
    Action f = ReadAction(Trimmed(inside.substr(0, semicolon)), cell, place);
    Action b = ReadAction(Trimmed(inside.substr(semicolon + 1)), cell, place);
    if (f.type == Type::kB) std::swap(f, b);
    if (f.type != Type::kF || b.type != Type::kB) {
      Fail(place, Shown(cell) + ": a pair overlaps one F with one B, the full backward");
    }
    plan_.programs.back().push_back(Pair(f.stage, f.microbatch, b.stage, b.microbatch));
    Keep(f);
    Keep(b);
  }

  /// `text` is the action, `cell` what it is part of.
  Action ReadAction(std::string_view text, std::string_view cell, Place place) {
    Action action;
    action.place = place;
    const std::optional<int> stage = TakeNumber(&text);
    const size_t length = std::min(text.size(), text.find_first_of("0123456789"));
    const auto* const type = TypeOf(text.substr(0, length));
    if (!stage || type == nullptr) {
      Fail(place, Shown(cell) + ": is not an action; an action is a stage, one of F " +
                      (old_ ? "B W BW" : "I W B") +
                      " SEND_F RECV_F SEND_B RECV_B WAIT_SEND_F WAIT_SEND_B and a micro-batch, as "
                      "in 2F0, or a stage and one of UNSHARD RESHARD REDUCE_GRAD WAIT_REDUCE_GRAD");
    }
    text.remove_prefix(length);
    action.type = type->type;
    action.name = type->name;
    action.stage = *stage;
    if (*stage >= kMaxStages) {
      Fail(place, Shown(cell) + ": the stage must be in 0.." + std::to_string(kMaxStages - 1));
    }
    if (HasMicrobatch(action.type)) {
      const std::optional<int> microbatch = TakeNumber(&text);
      if (!microbatch || *microbatch >= kMaxMicrobatches) {
        Fail(place, Shown(cell) + ": " + std::string(type->name) +
                        " needs a micro-batch after it, in 0.." +
                        std::to_string(kMaxMicrobatches - 1));
      }
      action.microbatch = *microbatch;
    }
    if (!text.empty()) {
      Fail(place, Shown(cell) + ": continues after " + action.Text() + " with " + Shown(text));
    }
    Own(action);
    return action;
  }

  /// Null for a name that is none.
  const TypeName* TypeOf(std::string_view name) const {
    const auto is = [&](const TypeName& known) { return known.name == name; };
    if (const auto* const found = std::find_if(kOldTypes.begin(), kOldTypes.end(), is);
        old_ && found != kOldTypes.end()) {
      return found;
    }
    const auto* const found = std::find_if(kTypes.begin(), kTypes.end(), is);
    return found == kTypes.end() || (old_ && found->type == Type::kI) ? nullptr : found;
  }

  /// The number that `text` begins with, cut off; too large ones come back as the largest int.
  static std::optional<int> TakeNumber(std::string_view* text) {
    int number = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
    if (error == std::errc::invalid_argument || text->starts_with('-')) return {};
    text->remove_prefix(static_cast<size_t>(end - text->data()));
    return error == std::errc() ? number : std::numeric_limits<int>::max();
  }

  /// Every action says that its stage lives on the rank of its row.
  void Own(const Action& action) {
    const auto stage = static_cast<size_t>(action.stage);
    if (owners_.size() <= stage) owners_.resize(stage + 1);
    if (owners_[stage].row < 0) owners_[stage] = action.place;
    if (owners_[stage].row == action.place.row) return;
    Fail(action.place, action.Text() + ": stage " + std::to_string(stage) + " is on row " +
                           std::to_string(owners_[stage].row + 1) +
                           " already; a stage lives on one rank");
  }

  void Keep(const Action& action) {
    if (action.type == Type::kF) forwards_.push_back(action);
    if (action.type == Type::kI || action.type == Type::kB) backwards_.push_back(action);
    if (action.type == Type::kW || action.type == Type::kB) weights_.push_back(action);
    microbatches_ = std::max(microbatches_, action.microbatch + 1);
  }

  void FindStages() {
    Route route;
    for (size_t stage = 0; stage < owners_.size(); ++stage) {
      if (owners_[stage].row < 0) {
        throw Error(file_ + ": stage " + std::to_string(stage) +
                    " is on no row, but there is a stage " + std::to_string(owners_.size() - 1) +
                    "; stages are numbered from 0 without gaps");
      }
      route.ranks.push_back(owners_[stage].row);
    }
    plan_.stages = static_cast<int>(owners_.size());
    plan_.routes.push_back(std::move(route));
  }

  /// Sorts by stage and micro-batch, and throws if one of them is there twice or not at all.
  void CheckComplete(std::vector<Action>* actions, const std::string& what) const {
    const auto key = [](const Action& a) { return std::tie(a.stage, a.microbatch); };
    std::stable_sort(actions->begin(), actions->end(),
                     [&](const Action& a, const Action& b) { return key(a) < key(b); });
    for (size_t i = 0; i + 1 < actions->size(); ++i) {
      const Action &first = (*actions)[i], &second = (*actions)[i + 1];
      if (key(first) != key(second)) continue;
      Fail(second.place, second.Text() + ": the " + what + " of stage " +
                             std::to_string(first.stage) + " for micro-batch " +
                             std::to_string(first.microbatch) + " was already done at " +
                             Text(first.place) + " (" + first.Text() + ")");
    }
    int stage = 0, microbatch = 0;
    for (const Action& action : *actions) {
      if (action.stage != stage || action.microbatch != microbatch) break;
      if (++microbatch < microbatches_) continue;
      microbatch = 0;
      ++stage;
    }
    if (stage == plan_.stages) return;
    throw Error(file_ + ": row " + std::to_string(owners_[static_cast<size_t>(stage)].row + 1) +
                " has no " + what + " of stage " + std::to_string(stage) + " for micro-batch " +
                std::to_string(microbatch) + "; every stage runs all " +
                std::to_string(microbatches_) + " micro-batches" +
                (old_ && what != "forward" ? "; " + std::string(kOldLetters) : ""));
  }

  /// `later` must stand behind `earlier` in their row.
  void CheckBehind(const Action& later, const Action& earlier) const {
    if (later.place.column > earlier.place.column) return;
    Fail(later.place, later.Text() + ": must come after " + earlier.Text() + ", which is at " +
                          Text(earlier.place));
  }

  void CheckChunks() {
    CheckComplete(&forwards_, "forward");
    if (ForwardsAlone()) return;
    CheckComplete(&backwards_, "backward");
    CheckComplete(&weights_, "weight gradient");
    for (size_t i = 0; i < forwards_.size(); ++i) {
      CheckBehind(backwards_[i], forwards_[i]);
      if (weights_[i].type == Type::kW) CheckBehind(weights_[i], backwards_[i]);
    }
  }

  /// A step without backward, as for evaluation.
  bool ForwardsAlone() const { return backwards_.empty() && weights_.empty(); }

  /// Adds a backward of all micro-batches, since plans have them, with messages where there are
  /// any.
  void AddBackwards() {
    const bool messages = !messages_.empty();
    for (int m = 0; m < microbatches_; ++m) {
      for (int s = plan_.stages - 1; s >= 0; --s) {
        const Place place = owners_[static_cast<size_t>(s)];
        Program& program = plan_.program(place.row);
        const auto add = [&](Type type, Op op) {
          messages_.push_back(
              {{.type = type, .stage = s, .microbatch = m, .place = place}, program.size()});
          program.push_back(Message(op, s, m, -1));
        };
        if (messages && Crosses(s)) add(Type::kRecvB, Op::RECV_B);
        program.push_back(CellOp(Op::BW, s, m));
        if (messages && Crosses(s - 1)) add(Type::kSendB, Op::SEND_B);
      }
    }
  }

  void TakeNotes(TorchCsvNotes* notes) const {
    notes->forwards_alone = ForwardsAlone();
    const auto note = [&](const std::string& text) { notes->notes.push_back(file_ + ": " + text); };
    if (old_) note(kOldLetters);
    if (notes->forwards_alone) {
      note(
          "has forwards alone; a backward that takes no time is added after them, so its messages "
          "take comm, and activations are held to the end");
    }
    if (sharded_ > 0) {
      note(std::to_string(sharded_) + " of its " + std::to_string(cells_) +
           " cells are UNSHARD, RESHARD, REDUCE_GRAD or WAIT_REDUCE_GRAD, which take no time here");
    }
  }

  /// True if micro-batches go from this stage to the next by a message.
  bool Crosses(int stage) const {
    const auto s = static_cast<size_t>(stage);
    return stage >= 0 && s + 1 < owners_.size() && owners_[s].row != owners_[s + 1].row;
  }

  void CheckMicrobatch(const Action& action) const {
    if (action.microbatch < microbatches_) return;
    Fail(action.place,
         action.Text() + ": there are " + std::to_string(microbatches_) + " micro-batches only");
  }

  /// Gives messages their peers, and every stage a STEP: PyTorch's optimizer runs behind all.
  void FinishMessages() {
    for (const Action& wait : waits_) CheckMicrobatch(wait);
    if (!marked_) plan_.marks.clear();
    if (messages_.empty()) return;
    plan_.level = Level::kComm;
    for (const auto& [action, index] : messages_) {
      CheckMicrobatch(action);
      // SEND_F and RECV_B stand at the stage before the hop, the two others at the one behind it.
      const bool before = action.type == Type::kSendF || action.type == Type::kRecvB;
      if (!Crosses(before ? action.stage : action.stage - 1)) {
        Fail(action.place, action.Text() + ": stage " + std::to_string(action.stage) + " has no " +
                               (before ? "next stage" : "stage before it") + " on another rank");
      }
      const auto other = static_cast<size_t>(action.stage + (before ? 1 : -1));
      plan_.program(action.place.row)[index].peer = owners_[other].row;
    }
    for (int stage = 0; stage < plan_.stages; ++stage) {
      plan_.program(owners_[static_cast<size_t>(stage)].row).push_back(StageOp(Op::STEP, stage));
    }
  }

  void FinishHead() {
    plan_.schedule = "imported";
    plan_.level = Level::kCompute;
    plan_.microbatches = microbatches_;
    for (int m = 0; m < microbatches_; ++m) plan_.routes[0].microbatches.push_back(m);
    if (int64_t{plan_.stages} * plan_.microbatches > kMaxCells) {
      throw Error(file_ + ": has " + std::to_string(plan_.stages) + " stages and " +
                  std::to_string(microbatches_) + " micro-batches, more than " +
                  std::to_string(kMaxCells) + " cells");
    }
  }

  std::string_view text_;  ///< what is not read yet
  const std::string& file_;
  Plan plan_;
  std::vector<Place> owners_;  ///< of each stage, where it was seen first
  std::vector<Action> forwards_, backwards_, weights_, waits_;
  std::vector<std::pair<Action, size_t>> messages_;  ///< and where each is in its program
  int microbatches_ = 0;
  bool marked_ = false;  ///< some rank has a mark
  const bool old_;       ///< kOldTypes
  int64_t cells_ = 0, sharded_ = 0;
};

}  // namespace

bool LooksLikeTorchCsv(std::string_view beginning) {
  if (beginning.starts_with(kByteOrderMark)) beginning.remove_prefix(kByteOrderMark.size());
  constexpr std::string_view kFirst = "0123456789,(\" \r\nN";
  if (beginning.empty() || kFirst.find(beginning[0]) != std::string_view::npos) {
    return !beginning.empty();
  }
  // A list of lists or a dict of them, where JSON has names in quotes or objects.
  const size_t first = beginning.find_first_not_of("[{ \t\r\n");
  return std::string_view("[{").find(beginning[0]) != std::string_view::npos &&
         first != std::string_view::npos &&
         kFirst.find(beginning[first]) != std::string_view::npos && beginning[first] != '"';
}

Plan ReadTorchCsv(std::string_view text, const std::string& place, TorchCsvNotes* notes) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  // A bracket in a cell begins no list.
  const size_t open = text.find('[');
  if (open == std::string_view::npos || text.substr(0, open).find_first_not_of(
                                            " \t\r\n{:0123456789Rrank") != std::string_view::npos) {
    return Reader(text, place).Read(notes);
  }
  const std::string rows = RowsOfLists(text, place);
  return Reader(rows, place).Read(notes);
}

CostModel CostsOfForwards(CostModel costs, const std::string& place) {
  const auto refuse = [&](bool components) {
    if (!components) return;
    throw Error(place +
                ": has forwards alone, and these costs are of components; give costs of stages");
  };
  const auto leave = [](StageCost* cost) {
    cost->b = cost->w = cost->bw = 0;
    cost->reduce = cost->step = 0;
    cost->fb = cost->f;
  };
  refuse(costs.moe || !costs.stage_moe.empty());
  for (StageCost& stage : costs.stages) leave(&stage);
  for (LayerCost& layer : costs.layers) {
    refuse(layer.moe.has_value());
    leave(&layer.cost);
  }
  return costs;
}

Plan WithoutMessages(Plan plan) {
  for (Program& program : plan.programs) {
    program.erase(
        std::remove_if(program.begin(), program.end(),
                       [](const Instruction& i) { return WorkOf(i.op) != Work::kCompute; }),
        program.end());
  }
  plan.level = Level::kCompute;
  plan.semantics = Semantics::kRank;
  plan.marks.clear();
  return plan;
}

std::optional<Finding> LossOutOfTurn(const Plan& plan) {
  for (int r = 0; r < plan.ranks; ++r) {
    int next = 0;
    for (size_t at = 0; at < plan.program(r).size(); ++at) {
      const Instruction& i = plan.program(r)[at];
      if (!HasForward(i.op) || i.stage + 1 != plan.stages || i.microbatch == next++) continue;
      return Finding{"order", r, static_cast<int>(at),
                     ToString(i) +
                         " is out of turn: PyTorch takes the losses of the last stage by position, "
                         "so its forwards must ascend"};
    }
  }
  return std::nullopt;
}

void RequireLossesInTurn(const Plan& plan, const std::string& place) {
  const std::optional<Finding> found = LossOutOfTurn(plan);
  if (!found) return;
  throw Error(place + ": " + CsvPlace(plan, found->rank, found->index) + ": " + found->message);
}

std::string CsvPlace(const Plan& plan, int rank, int index) {
  int column = index;
  if (!plan.marks.empty()) {
    for (const Mark& mark : plan.marks[static_cast<size_t>(rank)]) {
      if (mark.before <= index) column += mark.count;
    }
  }
  return Text(Place{rank, column});
}

}  // namespace contraflow
