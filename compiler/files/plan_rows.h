#pragma once

// What the readers of whole plans and of a rank's file share, and nobody else includes.

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/files/json.h"
#include "compiler/plan/packed_instruction.h"
#include "compiler/plan/plan.h"

namespace contraflow {

/// "programs" or "slots" as they stream in, a row for each rank. Only the form of the entries is
/// checked here: the head may follow later.
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
  /// Throws Error for the first entry that does not parse.
  void RequireParsed() const;

  EntryRows<Instruction> programs;
  EntryRows<Slot> slots;

 private:
  template <typename Entry>
  void Begin(size_t row, const char* noun, const char* member, EntryRows<Entry>* rows);
  template <typename Entry, typename Parse>
  void Take(size_t row, size_t index, const char* member, EntryRows<Entry>* rows, Parse parse);
  void TakeName(size_t row, size_t index, std::string_view name);

  const std::string place_;
  Unpacker unpacker_;
  std::string names_error_;
  std::array<JsonRows, 3> members_;
};

}  // namespace contraflow
