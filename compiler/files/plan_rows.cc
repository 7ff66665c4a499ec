#include <algorithm>
#include <iterator>
#include <type_traits>
#include <utility>

#include "compiler/files/plan_document.h"
#include "compiler/plan/error.h"

namespace contraflow {
namespace {

constexpr Op kOps[] = {
#define CF_OP(name, operands, work) Op::name,
    CF_OPS(CF_OP)
#undef CF_OP
};
constexpr Lane kLanes[] = {Lane::kCompute, Lane::kAllToAll, Lane::kSend,  Lane::kRecv,
                           Lane::kReduce,  Lane::kOffload,  Lane::kReload};

/// Takes numbers from a list; those after its end are -1.
class Numbers {
 public:
  explicit Numbers(std::span<const int64_t> numbers) : all_(numbers), rest_(numbers) {}

  [[noreturn]] void Fail(const std::string& what) const {
    std::string list;
    for (const int64_t number : all_) list += (list.empty() ? "" : ",") + std::to_string(number);
    throw Error("instruction [" + list + "]: " + what);
  }

  bool empty() const { return rest_.empty(); }

  int32_t Take(int64_t low, int64_t high, const char* noun) {
    const int64_t number = rest_.empty() ? -1 : rest_.front();
    if (number < low || number > high) {
      Fail(std::string(noun) + (rest_.empty()
                                    ? " is missing"
                                    : " must be in " + std::to_string(low) + ".." +
                                          std::to_string(high) + ", is " + std::to_string(number)));
    }
    if (!rest_.empty()) rest_ = rest_.subspan(1);
    return static_cast<int32_t>(number);
  }
  int32_t Operand(const char* noun, int64_t high = INT32_MAX) { return Take(0, high, noun); }
  /// An operation or lane.
  int32_t Index(const char* noun, int64_t low, size_t names) {
    if (names == 0 && (low == 0 || (!rest_.empty() && rest_.front() >= 0))) {
      Fail(std::string("the document must give the names before it, see \"names\", to say what ") +
           noun + " stands for");
    }
    return Take(low, static_cast<int64_t>(names) - 1, noun);
  }

  /// The last number says something that a shorter list would not.
  bool ends_well() const { return all_.empty() || all_.back() >= 0; }

 private:
  const std::span<const int64_t> all_;
  std::span<const int64_t> rest_;
};

/// Appends the entry of this name, which may stand there once.
template <typename T>
void Append(std::span<const T> known, std::string_view name, const char* noun,
            std::vector<T>* list) {
  const auto found =
      std::find_if(known.begin(), known.end(), [name](T value) { return Name(value) == name; });
  const std::string shown = "\"" + std::string(name.substr(0, 32)) + "\"";
  if (found == known.end()) throw Error("unknown " + std::string(noun) + " " + shown);
  if (std::find(list->begin(), list->end(), *found) != list->end()) {
    throw Error(std::string(noun) + " " + shown + " is named twice");
  }
  list->push_back(*found);
}

constexpr const char* kNamesKey = "names";
constexpr const char* kPrograms = "programs";
constexpr const char* kSlots = "slots";
constexpr const char* kMarks = "marks";

/// A terminal gets no control characters and no broken UTF-8 from a file.
bool IsPlain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

/// Holds what was read of a plan document against its head. Both must outlive this.
class PlanLimits {
 public:
  PlanLimits(const Plan& plan, const std::string& place) : place_(place), plan_(plan) {
    const bool alike = plan.costs && plan.costs->moe;
    layers_ = plan.layers > 0 ? plan.layers
              : alike         ? plan.costs->moe->layers_per_stage
                              : kMaxLayers;
    // Rows of each chunk: F, R, B, W and four messages, or at the levels below fourteen components
    // a layer instead; of each stage: REDUCE and STEP.
    const bool coarse = plan.level == Level::kCompute || plan.level == Level::kComm;
    const int64_t per_chunk = 8 + (coarse ? 0 : int64_t{14} * layers_);
    longest_ = int64_t{plan.stages} * (plan.microbatches * per_chunk + 2);
  }

  /// Throw Error "PLACE: PATH: what" for an entry out of range, and for more of them than there can
  /// be. The program of this row of the document, with this many slots (level buffer only).
  void Check(const Program& program, size_t row, size_t slots) {
    path_ = ": /programs/" + std::to_string(row);
    index_ = -1;
    if (std::ssize(program) > longest_) {
      Fail("has " + std::to_string(program.size()) + " instructions, more than " +
           std::to_string(longest_) + ", all there can be for " + std::to_string(plan_.stages) +
           " stages and " + std::to_string(plan_.microbatches) + " micro-batches");
    }
    slots_ = plan_.level == Level::kBuffer ? static_cast<int64_t>(slots) : longest_;
    for (const Instruction& instruction : program) {
      ++index_;
      Check(instruction);
    }
  }
  void Check(const std::vector<Mark>& marks, size_t row, const Program& program) {
    path_ = ": /marks/" + std::to_string(row);
    index_ = -1;
    int32_t last = 0;
    for (const Mark& mark : marks) {
      ++index_;
      Check(mark, "the stage", mark.stage, plan_.stages);
      Check(mark, "the micro-batch", mark.microbatch, plan_.microbatches);
      Check(mark, "\"before\"", mark.before, std::ssize(program) + 1);
      if (mark.before < last) {
        Fail("mark \"" + ToString(mark) + "\": stands after one before " + std::to_string(last) +
             "; \"before\" must ascend");
      }
      last = mark.before;
    }
  }
  void Check(const std::vector<Slot>& slots, size_t row, const Program& program) {
    path_ = ": /slots/" + std::to_string(row);
    index_ = -1;
    if (slots.size() > kMaxMade * program.size()) {
      Fail("has " + std::to_string(slots.size()) + " slots, more than " +
           std::to_string(kMaxMade * program.size()) + ", all that " +
           std::to_string(program.size()) + " instructions can make");
    }
    for (const Slot& slot : slots) {
      ++index_;
      Check(slot, std::ssize(program));
    }
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    throw Error(place_ + path_ + (index_ < 0 ? "" : "/" + std::to_string(index_)) + ": " + what);
  }

  /// `size` values from 0; -1 stands for a field that it does not have.
  template <typename Entry>
  void Check(const Entry& entry, const char* noun, int64_t value, int64_t size) const {
    if (value < size) return;
    constexpr const char* kEntry = std::is_same_v<Entry, Slot>   ? "slot \""
                                   : std::is_same_v<Entry, Mark> ? "mark \""
                                                                 : "instruction \"";
    Fail(kEntry + ToString(entry) + "\": " + noun +
         (size > 0 ? " must be in 0.." + std::to_string(size - 1) + ", is " + std::to_string(value)
                   : " must not be given, there are none"));
  }

  void Check(const Instruction& i) const {
    Check(i, "the stage", i.stage, plan_.stages);
    Check(i, "the micro-batch", i.microbatch, plan_.microbatches);
    Check(i, "the backward stage", i.back_stage, plan_.stages);
    Check(i, "the backward micro-batch", i.back_microbatch, plan_.microbatches);
    Check(i, "the peer", i.peer, plan_.ranks);
    Check(i, "the layer", i.layer, layers_);
    Check(i, "the slot", i.slot, slots_);
    Check(i, "the group", i.group, longest_ * plan_.ranks);
    if (i.after_count == 0) return;
    // Ascending, so the last one decides.
    const int last = i.after[i.after_count - size_t{1}];
    if (last >= index_) {
      Fail("instruction \"" + ToString(i) +
           "\": \"after\" must name earlier instructions of the same program, " +
           std::to_string(last) + " is not before " + std::to_string(index_));
    }
  }

  void Check(const Slot& slot, int64_t instructions) const {
    Check(slot, "the stage", slot.stage, plan_.stages);
    Check(slot, "the layer", slot.layer, plan_.layers);
    Check(slot, "the micro-batch", slot.microbatch, plan_.microbatches);
    Check(slot, "the first use", slot.first, instructions);
    Check(slot, "the last use", slot.last, instructions);
    Check(slot, "the offset", slot.offset, kMaxArena + 1);
    Check(slot, "the bytes", slot.bytes, kMaxArena + 1);
  }

  const std::string& place_;
  const Plan& plan_;
  std::string path_;
  int layers_ = 0;
  int64_t longest_ = 0;  ///< of the programs
  int64_t slots_ = 0;    ///< of the row that is checked
  int64_t index_ = -1;   ///< of the entry; -1: the row
};

/// The entry that a text stands for.
template <typename Parse>
auto ParsePlain(const char* noun, std::string_view text, Parse parse) {
  try {
    return parse(text);
  } catch (const Error& wrong) {
    if (IsPlain(wrong.what())) throw;
    throw Error(std::string(noun) + " " + Excerpt(text) +
                ": has characters other than plain ASCII");
  }
}

/// Refuses a member with another number of rows than the document has ranks.
void CheckRows(const JsonCursor& field, size_t rows, bool one, int ranks, const char* noun,
               const char* nouns) {
  if (std::cmp_equal(rows, one ? 1 : ranks)) return;
  field.Fail("must have " + (one ? "1 " + std::string(noun) : std::to_string(ranks) + " " + nouns) +
             ", " + (one ? "that of the rank" : "one for each rank") + ", has " +
             std::to_string(rows));
}

void CheckMarks(const JsonCursor& field, const Plan& plan, size_t rows, bool one) {
  CheckRows(field, rows, one, plan.ranks, "list of marks", "lists of marks");
  if (plan.level <= Level::kComm) return;
  field.Fail("only plans of level compute and comm have marks, this one is of level " +
             std::string(Name(plan.level)));
}

}  // namespace

PackedInstruction::PackedInstruction(const Instruction& i) {
  const auto put = [this](int32_t number) { numbers[size++] = number; };
  constexpr auto kPartCount = static_cast<int32_t>(std::size(kParts));
  put(static_cast<int32_t>(i.op) +
      kOpCount * (static_cast<int32_t>(i.part) + kPartCount * int32_t{i.layers}));
  put(i.stage);
  const Operands operands = OperandsOf(i.op);
  if (operands == Operands::kLayer) put(i.layer);
  if (operands != Operands::kStage) put(i.microbatch);
  if (operands == Operands::kPair) {
    put(i.back_stage);
    put(i.back_microbatch);
  }
  if (operands == Operands::kMessage) put(i.peer);
  put(i.group);
  put(i.slot);
  put(static_cast<int32_t>(i.lane) - 1);
  for (int k = 0; k < i.after_count; ++k) put(i.after[static_cast<size_t>(k)]);
  while (numbers[size - 1] < 0) --size;
}

std::vector<std::vector<std::string_view>> PackedNames() {
  std::vector<std::vector<std::string_view>> names(2);
  for (const Op op : kOps) names[0].push_back(Name(op));
  for (const Lane lane : kLanes) names[1].push_back(Name(lane));
  return names;
}

void Unpacker::AddName(size_t list, std::string_view name) {
  if (list == 0) return Append<Op>(kOps, name, "operation", &ops_);
  if (list == 1) return Append<Lane>(kLanes, name, "lane", &lanes_);
  throw Error("there are two lists of names, of operations and of lanes");
}

Instruction Unpacker::Unpack(std::span<const int64_t> list) const {
  Numbers numbers(list);
  Instruction i;
  // Extents of R: parts, each of all layers or of the first 1..INT16_MAX.
  constexpr size_t kExtents = std::size(kParts) * (size_t{INT16_MAX} + 1);
  const bool parts = std::ranges::count(ops_, Op::R) > 0;
  const auto number =
      static_cast<size_t>(numbers.Index("the operation", 0, ops_.size() * (parts ? kExtents : 1)));
  const size_t extent = number / ops_.size();
  i.op = ops_[number % ops_.size()];
  i.part = kParts[extent % std::size(kParts)];
  i.layers = static_cast<int16_t>(extent / std::size(kParts));
  if (extent != 0 && i.op != Op::R) numbers.Fail("only R has a part or layers");
  i.stage = numbers.Operand("the stage");
  const Operands operands = OperandsOf(i.op);
  if (operands == Operands::kLayer) {
    i.layer = static_cast<int16_t>(numbers.Operand("the layer", INT16_MAX));
  }
  if (operands != Operands::kStage) i.microbatch = numbers.Operand("the micro-batch");
  if (operands == Operands::kPair) {
    i.back_stage = numbers.Operand("the backward stage");
    i.back_microbatch = numbers.Operand("the backward micro-batch");
  }
  if (operands == Operands::kMessage) i.peer = numbers.Operand("the peer");
  if (numbers.empty()) return i;
  if (!numbers.ends_well()) numbers.Fail("ends with -1; leave out what it does not have");
  i.group = numbers.Take(-1, INT32_MAX, "the group");
  i.slot = numbers.Take(-1, INT32_MAX, "the slot");
  if (const int32_t lane = numbers.Index("the lane", -1, lanes_.size()); lane >= 0) {
    i.lane = lanes_[static_cast<size_t>(lane)];
  }
  for (int32_t last = -1; !numbers.empty();) {
    if (i.after_count == kMaxAfter) {
      numbers.Fail("\"after\" has more than " + std::to_string(kMaxAfter) +
                   " entries; one for each other lane is enough");
    }
    last = numbers.Take(int64_t{last} + 1, INT32_MAX, "the next of \"after\" (ascending)");
    i.after[i.after_count++] = last;
  }
  return i;
}

PlanRows::PlanRows(const std::string& place) : place_(place) {
  members_[0] = {
      kNamesKey,
      [this](size_t row) {
        if (row >= 2) throw Error(place_ + ": /names: more than two lists");
      },
      [this](size_t row, size_t index, std::string_view name) { TakeName(row, index, name); }};
  members_[1] = {kPrograms, [this](size_t row) { Begin(row, "programs", kPrograms, &programs_); },
                 [this](size_t row, size_t index, std::string_view text) {
                   Take(row, index, kPrograms, &programs_,
                        [text] { return ParsePlain("instruction", text, ParseInstruction); });
                 },
                 [this](size_t row, size_t index, std::span<const int64_t> numbers) {
                   Take(row, index, kPrograms, &programs_,
                        [&] { return unpacker_.Unpack(numbers); });
                 }};
  members_[2] = {kSlots, [this](size_t row) { Begin(row, "lists", kSlots, &slots_); },
                 [this](size_t row, size_t index, std::string_view text) {
                   Take(row, index, kSlots, &slots_,
                        [text] { return ParsePlain("slot", text, ParseSlot); });
                 }};
  members_[3] = {kMarks, [this](size_t row) { Begin(row, "lists", kMarks, &marks_); },
                 [this](size_t row, size_t index, std::string_view text) {
                   Take(row, index, kMarks, &marks_,
                        [text] { return ParsePlain("mark", text, ParseMark); });
                 }};
}

void PlanRows::Finish() {
  programs_.Finish();
  slots_.Finish();
  marks_.Finish();
}

void PlanRows::MoveTo(Plan* plan, const JsonCursor& root, std::optional<int> rank) {
  std::vector<Program>& programs = programs_.done;
  std::vector<std::vector<Slot>>& slots = slots_.done;
  const bool placed = plan->level == Level::kBuffer;
  CheckRows(root.Required(kPrograms), programs.size(), rank.has_value(), plan->ranks, "program",
            "programs");
  if (placed) {
    CheckRows(root.Required(kSlots), slots.size(), rank.has_value(), plan->ranks, "list of slots",
              "lists of slots");
  } else if (const auto field = root.Optional(kSlots)) {
    field->Fail("only a plan of level buffer has slots, this one is of level " +
                std::string(Name(plan->level)));
  }
  std::vector<std::vector<Mark>>& marks = marks_.done;
  const auto marked = root.Optional(kMarks);
  if (marked) CheckMarks(*marked, *plan, marks.size(), rank.has_value());
  for (const std::string* error : {&names_error_, &programs_.error, &slots_.error, &marks_.error}) {
    if (!error->empty()) throw Error(*error);
  }
  PlanLimits limits(*plan, place_);
  for (size_t r = 0; r < programs.size(); ++r) {
    limits.Check(programs[r], r, placed ? slots[r].size() : 0);
    if (placed) limits.Check(slots[r], r, programs[r]);
    if (marked) limits.Check(marks[r], r, programs[r]);
  }
  if (!rank) {
    plan->programs = std::move(programs);
    plan->slots = std::move(slots);
    plan->marks = std::move(marks);
    return;
  }
  const auto ranks = static_cast<size_t>(plan->ranks), own = static_cast<size_t>(*rank);
  const auto place = [ranks, own](auto* lists, auto* read) {
    lists->resize(ranks);
    (*lists)[own] = std::move(read->front());
  };
  place(&plan->programs, &programs);
  if (placed) place(&plan->slots, &slots);
  if (marked) place(&plan->marks, &marks);
}

template <typename Entry>
void PlanRows::Begin(size_t row, const char* noun, const char* member, EntryRows<Entry>* rows) {
  rows->Finish();
  if (row >= size_t{kMaxRanks}) {
    throw Error(place_ + ": /" + member + ": more than " + std::to_string(kMaxRanks) + " " + noun);
  }
  rows->done.emplace_back();
}

template <typename Entry, typename Parse>
void PlanRows::Take(size_t row, size_t index, const char* member, EntryRows<Entry>* rows,
                    Parse parse) {
  if (!rows->error.empty()) return;
  try {
    rows->open.push_back(parse());
  } catch (const Error& wrong) {
    rows->error = place_ + ": /" + member + "/" + std::to_string(row) + "/" +
                  std::to_string(index) + ": " + wrong.what();
  }
}

void PlanRows::TakeName(size_t row, size_t index, std::string_view name) {
  if (!names_error_.empty()) return;
  try {
    unpacker_.AddName(row, name);
  } catch (const Error& wrong) {
    const std::string what = wrong.what();
    names_error_ = place_ + ": /names/" + std::to_string(row) + "/" + std::to_string(index) + ": " +
                   (IsPlain(what) ? what : "has characters other than plain ASCII");
  }
}

}  // namespace contraflow
