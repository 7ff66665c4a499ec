#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"
#include "compiler/verify/verify.h"
#include "tools/interop/interop.h"

namespace contraflow {
namespace {

/// Which release of PyTorch has what.
constexpr TorchVersion kRuntime = {2, 6};      ///< a runtime that loads such files
constexpr TorchVersion kOverlap = {2, 9};      ///< OVERLAP_F_B
constexpr TorchVersion kReduceGrad = {2, 10};  ///< REDUCE_GRAD
constexpr TorchVersion kWaits = {2, 15};       ///< WAIT_SEND_F, WAIT_SEND_B, WAIT_REDUCE_GRAD

std::string Cell(const char* type, int stage, int microbatch) {
  return std::to_string(stage) + type + std::to_string(microbatch);
}

/// Returns the cell of an instruction, "" if it has none.
std::string CellOf(const Instruction& i) {
  if (i.op == Op::F) return Cell("F", i.stage, i.microbatch);
  if (i.op == Op::B) return Cell("I", i.stage, i.microbatch);
  if (i.op == Op::W) return Cell("W", i.stage, i.microbatch);
  if (i.op == Op::BW) return Cell("B", i.stage, i.microbatch);
  if (i.op == Op::FB) {
    return "(" + Cell("F", i.stage, i.microbatch) + ";" +
           Cell("B", i.back_stage, i.back_microbatch) + ")OVERLAP_F_B";
  }
  return "";
}

std::string CellOfMessage(const Instruction& i) {
  return std::to_string(i.stage) + std::string(Name(i.op)) + std::to_string(i.microbatch);
}

void CheckCells(const Plan& plan, const TorchCsvOptions& options) {
  if (plan.layers > 0) {
    throw Error(
        "the plan has components, for which PyTorch's CSV has no names; compile it with `level` "
        "comm or compute");
  }
  if (options.version < kRuntime) {
    throw Error("`torch` " + ToString(options.version) +
                ": its pipelining does not run schedules from a file; that needs torch " +
                ToString(kRuntime) + " or later");
  }
  if (options.version < TorchReleaseFor(plan)) {
    throw Error("`torch` " + ToString(options.version) +
                ": the plan overlaps forwards with backwards (FB), cells OVERLAP_F_B, which need "
                "torch " +
                ToString(kOverlap) + " or later");
  }
}

void CheckHolders(const Plan& plan) {
  const std::vector<std::vector<int>> holders = HoldersOfStage(plan);
  for (size_t stage = 0; stage < holders.size(); ++stage) {
    if (holders[stage].size() == 1) continue;
    throw Error("stage " + std::to_string(stage) + " lives on ranks " +
                std::to_string(holders[stage][0]) + " and " + std::to_string(holders[stage][1]) +
                "; PyTorch's schedules have one rank for each stage; " +
                (plan.provenance ? "compile it with `for` torch"
                                 : "dualpipe-v has the same overlap with one copy"));
  }
}

void CheckLosses(const Plan& plan) {
  const std::optional<Finding> found = LossOutOfTurn(plan);
  if (!found) return;
  throw Error("rank " + std::to_string(found->rank) + ", instruction " +
              std::to_string(found->index) + ": " + found->message +
              "; compile the plan with `for` torch");
}

/// PyTorch posts its messages one by one, so those of a group must be sound without it.
void CheckMessages(const Plan& plan) {
  if (plan.level == Level::kCompute) {
    throw Error(
        "the plan has no messages, it is of level compute; compile it with `level` comm, or give "
        "`form` compute, from which PyTorch makes its own");
  }
  Plan single = plan;
  bool grouped = false;
  for (Program& program : single.programs) {
    for (Instruction& i : program) grouped = std::exchange(i.group, -1) >= 0 || grouped;
  }
  if (!grouped) return;
  const std::vector<Finding> findings = Verify(single);
  if (findings.empty()) return;
  throw Error(
      "the plan posts messages in groups, which PyTorch's CSV cannot say, and one by one they are "
      "not sound: rank " +
      std::to_string(findings[0].rank) + ", instruction " + std::to_string(findings[0].index) +
      ": " + findings[0].message.substr(0, findings[0].message.find('\n')) +
      "; give `form` compute, from which PyTorch makes its own messages");
}

/// The cells of one rank.
class Row {
 public:
  void Add(const std::string& cell) {
    if (begun_) text_ += ',';
    text_ += cell;
    begun_ = true;
  }
  void AddIdle(int count) {
    for (int k = 0; k < count; ++k) Add("");
  }
  std::string Line() const { return text_ + "\r\n"; }

 private:
  std::string text_;
  bool begun_ = false;
};

/// "" for one that the version does not have.
std::string CellOf(const Mark& mark, TorchVersion version) {
  const bool wait = IsWaitSend(mark.kind) || mark.kind == MarkKind::kWaitReduceGrad;
  if (mark.kind == MarkKind::kIdle || (wait && version < kWaits) ||
      (mark.kind == MarkKind::kReduceGrad && version < kReduceGrad)) {
    return "";
  }
  return std::to_string(mark.stage) + std::string(Name(mark.kind)) +
         (mark.microbatch < 0 ? "" : std::to_string(mark.microbatch));
}

/// The cells of an imported schedule as they were: its compute order with idle slots, or that and
/// its messages with all but idle slots.
std::string ImportedRow(const Program& program, const std::vector<Mark>& marks,
                        const TorchCsvOptions& options) {
  Row row;
  auto mark = marks.begin();
  for (size_t at = 0; at <= program.size(); ++at) {
    for (; mark != marks.end() && static_cast<size_t>(mark->before) <= at; ++mark) {
      if (!options.messages && mark->kind == MarkKind::kIdle) row.AddIdle(mark->count);
      const std::string cell = options.messages ? CellOf(*mark, options.version) : "";
      if (!cell.empty()) row.Add(cell);
    }
    if (at == program.size()) break;
    const Instruction& i = program[at];
    const std::string cell = IsMessage(i.op) && options.messages ? CellOfMessage(i) : CellOf(i);
    if (!cell.empty()) row.Add(cell);
  }
  return row.Line();
}

/// Whether the messages of the plan are those of the file it was made from, and with them marks.
bool HasOwnCells(const Plan& plan) {
  return std::ranges::any_of(plan.marks, [](const std::vector<Mark>& marks) {
    return std::ranges::any_of(marks,
                               [](const Mark& mark) { return mark.kind != MarkKind::kIdle; });
  });
}

/// A row with messages, as the runtime of a version wants it: every stage is unsharded (FSDP) up to
/// the end of its gradients, and every send is waited for once, where the receiver is known to have
/// it or at the end.
class CommsRow {
 public:
  CommsRow(const Program& program, TorchVersion version) : version_(version) {
    for (const Instruction& i : program) {
      if (HasWeight(i.op)) ++weights_left_[BackStage(i)];
      if (i.op == Op::REDUCE) reduces_.insert(i.stage);
    }
    std::set<int> seen;
    for (const Instruction& i : program) {
      if (i.op != Op::F && i.op != Op::FB) continue;
      if (seen.insert(i.stage).second) row_.Add(std::to_string(i.stage) + "UNSHARD");
    }
    for (const Instruction& i : program) Add(i);
    for (const auto& [cell, send] : forwards_) Wait(send);
    for (const Instruction& send : backwards_) Wait(send);
  }

  std::string Line() const { return row_.Line(); }

 private:
  void Add(const Instruction& i) {
    if (IsMessage(i.op)) row_.Add(CellOfMessage(i));
    if (i.op == Op::SEND_F) forwards_.emplace(std::pair(i.stage, i.microbatch), i);
    if (i.op == Op::SEND_B) backwards_.push_back(i);
    if (const std::string cell = CellOf(i); !cell.empty()) row_.Add(cell);
    if (HasBackward(i.op)) {
      // The gradient of the sent activation has come back.
      const auto sent = forwards_.find({BackStage(i), BackMicrobatch(i)});
      if (sent != forwards_.end()) {
        Wait(sent->second);
        forwards_.erase(sent);
      }
    }
    const bool last = HasWeight(i.op) && --weights_left_[BackStage(i)] == 0;
    if (last && !reduces_.contains(BackStage(i))) Finish(BackStage(i));
    if (i.op == Op::REDUCE) Finish(i.stage);
  }

  void Wait(const Instruction& send) {
    if (version_ < kWaits) return;
    row_.Add(std::to_string(send.stage) + "WAIT_" + std::string(Name(send.op)) +
             std::to_string(send.microbatch));
  }

  void Finish(int stage) {
    const std::string name = std::to_string(stage);
    if (version_ >= kReduceGrad) row_.Add(name + "REDUCE_GRAD");
    if (version_ >= kWaits) row_.Add(name + "WAIT_REDUCE_GRAD");
    row_.Add(name + "RESHARD");
  }

  const TorchVersion version_;
  Row row_;
  std::map<int, int> weights_left_;  ///< weight gradients to come, by stage
  std::set<int> reduces_;            ///< stages with a REDUCE
  /// Sends that nothing has waited for, forwards by stage and micro-batch.
  std::map<std::pair<int, int>, Instruction> forwards_;
  std::vector<Instruction> backwards_;
};

/// "stages 0,1,5"
std::string Stages(const MarkedCells& cells, int stages) {
  std::string list;
  int count = 0;
  for (int s = 0; s < stages; ++s) {
    if (!cells.HasStage(s)) continue;
    list += (list.empty() ? "" : ",") + std::to_string(s);
    ++count;
  }
  return (count == 1 ? "stage " : "stages ") + list;
}

}  // namespace

std::string ToString(TorchVersion version) {
  return std::to_string(version.major) + "." + std::to_string(version.minor);
}

TorchVersion ParseTorchVersion(std::string_view text) {
  TorchVersion version;
  const char* const end = text.data() + text.size();
  const auto [dot, first] = std::from_chars(text.data(), end, version.major);
  if (first == std::errc() && dot != end && *dot == '.') {
    const auto [rest, second] = std::from_chars(dot + 1, end, version.minor);
    if (second == std::errc() && version.major >= 0 && version.minor >= 0 &&
        (rest == end || *rest == '.' || *rest == '+' || *rest == 'a' || *rest == 'r')) {
      return version;
    }
  }
  throw Error("`torch`: must be a version of PyTorch, such as 2.9 or 2.15.0, is \"" +
              std::string(text.substr(0, 40)) + "\"");
}

TorchVersion TorchReleaseFor(const Plan& plan) {
  const auto has_pair = [](const Program& program) {
    return std::ranges::any_of(program, [](const Instruction& i) { return i.op == Op::FB; });
  };
  return std::ranges::any_of(plan.programs, has_pair) ? kOverlap : kRuntime;
}

std::string WriteTorchCsv(const Plan& plan, const TorchCsvOptions& options) {
  CheckCells(plan, options);
  CheckHolders(plan);
  CheckLosses(plan);
  if (options.messages) CheckMessages(plan);
  std::string csv;
  const bool imported = !options.messages || HasOwnCells(plan);
  for (size_t r = 0; r < plan.programs.size(); ++r) {
    const Program& program = plan.programs[r];
    csv += imported ? ImportedRow(program, plan.marks.empty() ? std::vector<Mark>() : plan.marks[r],
                                  options)
                    : CommsRow(program, options.version).Line();
  }
  return csv;
}

std::vector<std::string> TorchNotes(const Plan& plan) {
  std::vector<std::string> notes;
  if (const RecomputedCells cells(plan); cells.any()) {
    notes.push_back("checkpoint " + Stages(cells, plan.stages) +
                    ": the plan recomputes them (R), for which PyTorch's CSV has no cell; wrap "
                    "their modules with torch.utils.checkpoint");
    for (int s = 0; s < plan.stages; ++s) {
      if (!cells.HasStage(s) || cells.extent(s).whole()) continue;
      notes.push_back("of stage " + std::to_string(s) + " wrap " + ToString(cells.extent(s)) +
                      " alone: the plan recomputes that part");
    }
  }
  if (const OffloadedCells cells(plan); cells.any()) {
    notes.push_back("offload " + Stages(cells, plan.stages) +
                    ": the plan moves their activations to the host (OFFLOAD), for which PyTorch's "
                    "CSV has no cell; their modules must do so themselves");
  }
  return notes;
}

}  // namespace contraflow
