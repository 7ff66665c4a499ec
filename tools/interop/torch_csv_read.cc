#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"
#include "tools/interop/interop.h"
#include "tools/interop/torch_cells.h"

// Strict where PyTorch is lenient: its reader takes "1F0xyz" for 1F0, and its check knows neither
// duplicates nor micro-batches that are missing on one stage only.

namespace contraflow::torch_csv {
namespace {

constexpr std::string_view kPair = "OVERLAP_F_B";
constexpr const char* kOldLetters =
    "B is read as the input gradient and BW as the full backward, as PyTorch wrote them before "
    "December 2024, since it has W or BW and no I";

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
  [[noreturn]] void Fail(Place place, const std::string& what) const { FailAt(file_, place, what); }

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
    const Action action = OwnAction(cell, cell, place);
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
    Action f = OwnAction(Trimmed(inside.substr(0, semicolon)), cell, place);
    Action b = OwnAction(Trimmed(inside.substr(semicolon + 1)), cell, place);
    if (f.type == Type::kB) std::swap(f, b);
    if (f.type != Type::kF || b.type != Type::kB) {
      Fail(place, Shown(cell) + ": a pair overlaps one F with one B, the full backward");
    }
    plan_.programs.back().push_back(Pair(f.stage, f.microbatch, b.stage, b.microbatch));
    Keep(f);
    Keep(b);
  }

  /// Reads an action, which says that its stage lives on the rank of its row.
  Action OwnAction(std::string_view text, std::string_view cell, Place place) {
    const Action action = ReadAction(text, cell, place, old_, file_);
    const auto stage = static_cast<size_t>(action.stage);
    if (owners_.size() <= stage) owners_.resize(stage + 1);
    if (owners_[stage].row < 0) owners_[stage] = action.place;
    if (owners_[stage].row == action.place.row) return action;
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

  /// `later` must stand after `earlier` in their row.
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

  /// Gives messages their peers, and every stage a STEP: PyTorch's optimizer runs after all.
  void FinishMessages() {
    for (const Action& wait : waits_) CheckMicrobatch(wait);
    if (!marked_) plan_.marks.clear();
    if (messages_.empty()) return;
    plan_.level = Level::kComm;
    for (const auto& [action, index] : messages_) {
      CheckMicrobatch(action);
      // SEND_F and RECV_B stand at the stage before the hop, the two others at the one after it.
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

  std::string_view text_;  ///< the unread rest
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
}  // namespace contraflow::torch_csv

namespace contraflow {
namespace {

/// Bytes that Windows puts before UTF-8.
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

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
    return torch_csv::Reader(text, place).Read(notes);
  }
  const std::string rows = torch_csv::RowsOfLists(text, place);
  return torch_csv::Reader(rows, place).Read(notes);
}

std::string CsvPlace(const Plan& plan, int rank, int index) {
  int column = index;
  if (!plan.marks.empty()) {
    for (const Mark& mark : plan.marks[static_cast<size_t>(rank)]) {
      if (mark.before <= index) column += mark.count;
    }
  }
  return torch_csv::Text({rank, column});
}

}  // namespace contraflow
