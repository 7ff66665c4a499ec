#include "compiler/plan/packed_instruction.h"

#include <algorithm>
#include <string>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

constexpr Op kOps[] = {
#define CF_OP(name, operands, work) Op::name,
    CF_OPS(CF_OP)
#undef CF_OP
};
// Looked at for every instruction of plans with millions: a table here, not a call elsewhere.
constexpr Operands kOperands[] = {
#define CF_OPERANDS(name, operands, work) Operands::operands,
    CF_OPS(CF_OPERANDS)
#undef CF_OPERANDS
};
constexpr Lane kLanes[] = {Lane::kCompute, Lane::kAllToAll, Lane::kSend, Lane::kRecv,
                           Lane::kReduce};

/// Takes numbers from a list; those behind its end are -1.
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

}  // namespace

PackedInstruction::PackedInstruction(const Instruction& i) {
  const auto put = [this](int32_t number) { numbers[size++] = number; };
  put(static_cast<int32_t>(i.op));
  put(i.stage);
  switch (kOperands[static_cast<size_t>(i.op)]) {
    case Operands::kCell:
      put(i.microbatch);
      break;
    case Operands::kPair:
      put(i.microbatch);
      put(i.back_stage);
      put(i.back_microbatch);
      break;
    case Operands::kMessage:
      put(i.microbatch);
      put(i.peer);
      break;
    case Operands::kLayer:
      put(i.layer);
      put(i.microbatch);
      break;
    case Operands::kStage:
      break;
  }
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
  i.op = ops_[static_cast<size_t>(numbers.Index("the operation", 0, ops_.size()))];
  i.stage = numbers.Operand("the stage");
  switch (kOperands[static_cast<size_t>(i.op)]) {
    case Operands::kCell:
      i.microbatch = numbers.Operand("the micro-batch");
      break;
    case Operands::kPair:
      i.microbatch = numbers.Operand("the micro-batch");
      i.back_stage = numbers.Operand("the backward stage");
      i.back_microbatch = numbers.Operand("the backward micro-batch");
      break;
    case Operands::kMessage:
      i.microbatch = numbers.Operand("the micro-batch");
      i.peer = numbers.Operand("the peer");
      break;
    case Operands::kLayer:
      i.layer = static_cast<int16_t>(numbers.Operand("the layer", INT16_MAX));
      i.microbatch = numbers.Operand("the micro-batch");
      break;
    case Operands::kStage:
      break;
  }
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

}  // namespace contraflow
