#pragma once

// The parts of plan documents, for the files that read and write them; not installed.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/files/file.h"
#include "compiler/files/json.h"
#include "compiler/files/plan_io.h"
#include "compiler/plan/plan.h"

namespace contraflow {

/// Values: for the head, not the rows.
inline constexpr JsonLimits kPlanLimits = {.bytes = kMaxPlanBytes, .values = size_t{1} << 22};

/// "format" of a rank's file in a folder.
inline constexpr std::string_view kRankFormat = "contraflow-rank";

/// FNV-1a, 64 bits (Fowler, Noll and Vo): tells files of two plans apart, and damage. No protection
/// against who wants to deceive; that is Verify's.
class PlanChecksum {
 public:
  void Add(std::string_view bytes) {
    for (const char byte : bytes) {
      sum_ = (sum_ ^ static_cast<unsigned char>(byte)) * uint64_t{0x100000001B3};
    }
  }
  /// 16 hexadecimal digits.
  std::string Text() const;

 private:
  uint64_t sum_ = uint64_t{0xCBF29CE484222325};
};

/// Parses a plan document in a file, the binary form piece by piece. The checksum, if there is one,
/// gets all bytes of a document that parses.
JsonDocument ParsePlanFile(InputFile* file, std::span<const JsonRows> rows, PlanChecksum* checksum);

/// Holds "format" and "version" against what is wanted.
void CheckFormat(const JsonCursor& root, std::string_view format);

/// The head of a folder with a file for each rank: a plan without programs, and their checksums.
struct FolderHead {
  Plan plan;
  std::vector<std::string> checksums;
};
FolderHead ReadFolderHead(const JsonDocument& json);

/// A time as it is written in every document: in the unit, whole where it is whole.
Json TimeToJson(Time ticks, Unit unit);

/// A plan's "costs", where the stage costs must be given.
CostModel ReadCosts(const JsonCursor& document);
Json CostsToJson(const CostModel& costs);
/// Appends CostsToJson(costs) with one line for each member of the document.
void WriteCosts(const CostModel& costs, std::string* out);

/// A plan's "provenance", times in the unit.
Json ProvenanceToJson(const Provenance& provenance, Unit unit);

/// Everything but programs, slots and marks, in the order of the file.
Json HeadToJson(const Plan& plan, std::optional<int> rank);

/// The binary form of a map with these members, then names, programs, slots and marks of ranks
/// [first, last).
void WriteBinaryRanks(const Json& head, const Plan& plan, int first, int last, const PutBytes& put);

/// An instruction as a short list of whole numbers, for large binary plans: operation, its operands
/// in the order of the text (stage, layer, micro-batch, backward chunk, peer), then group, slot,
/// lane and the entries of `after`. A field that it does not have is -1, and nothing stands after
/// the last that it has. Operation and lane are indices into lists of names which the document
/// brings along, so that plans outlive changes of the list of operations. R of a part, or of some
/// layers, has (that part's number + the number of parts * layers) * the length of the list added
/// to its own.
struct PackedInstruction {
  /// Operation, at most four operands, group, slot, lane.
  static constexpr size_t kMost = 8 + kMaxAfter;

  std::array<int64_t, kMost> numbers;
  size_t size = 0;

  explicit PackedInstruction(const Instruction& instruction);
  std::span<const int64_t> list() const { return {numbers.data(), size}; }
};

/// The lists that PackedInstruction counts in: names of operations, names of lanes.
std::vector<std::vector<std::string_view>> PackedNames();

/// Reads packed instructions by the lists of names of their document.
class Unpacker {
 public:
  /// The next name of a list: 0 operations, 1 lanes. Throws Error if there is no such name or list,
  /// or if it was given already.
  void AddName(size_t list, std::string_view name);

  /// Inverse of PackedInstruction: takes exactly what it makes. Throws Error "instruction [..]:
  /// what is wrong".
  Instruction Unpack(std::span<const int64_t> numbers) const;

 private:
  std::vector<Op> ops_;
  std::vector<Lane> lanes_;
};

/// "programs", "slots" or "marks" as they stream in, a row for each rank. Only the form of the
/// entries is checked here: the head may follow later.
template <typename Entry>
struct EntryRows {
  std::vector<std::vector<Entry>> done = {};
  std::vector<Entry> open = {};
  /// The first entry that does not parse. It is reported after the head was found good, because a
  /// document of another format or version has other entries.
  std::string error = {};

  /// Moves the open row to its place, without the slack of a vector that grew.
  void Finish() {
    if (!done.empty()) done.back().assign(open.begin(), open.end());
    open.clear();
  }
};

/// The members of a plan document that are too large for its tree.
class PlanRows {
 public:
  explicit PlanRows(const std::string& place);
  PlanRows(const PlanRows&) = delete;
  PlanRows& operator=(const PlanRows&) = delete;

  std::span<const JsonRows> members() const { return members_; }
  /// To be called at the end of the document.
  void Finish();
  /// Gives a plan that has the document's head its programs, slots and marks: those of all ranks,
  /// or of one, with the other ranks' empty. Throws Error for the first entry that does not parse
  /// or is out of range, and for another number of rows than there are ranks.
  void MoveTo(Plan* plan, const JsonCursor& root, std::optional<int> rank);

 private:
  template <typename Entry>
  void Begin(size_t row, const char* noun, const char* member, EntryRows<Entry>* rows);
  template <typename Entry, typename Parse>
  void Take(size_t row, size_t index, const char* member, EntryRows<Entry>* rows, Parse parse);
  void TakeName(size_t row, size_t index, std::string_view name);

  const std::string place_;
  EntryRows<Instruction> programs_;
  EntryRows<Slot> slots_;
  EntryRows<Mark> marks_;
  Unpacker unpacker_;
  std::string names_error_;
  std::array<JsonRows, 4> members_;
};

/// Most slots that one instruction makes: ATTN_F its layer's input, attention, scores, dispatched.
inline constexpr size_t kMaxMade = 4;
/// Largest offset and size of a slot: no memory is larger, and their sum cannot overflow.
inline constexpr int64_t kMaxArena = int64_t{1} << 60;

}  // namespace contraflow
