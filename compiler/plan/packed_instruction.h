#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "compiler/plan/instruction.h"

namespace contraflow {

/// An instruction as a short list of whole numbers, for large binary plans: operation, its operands
/// in the order of the text (stage, layer, micro-batch, backward chunk, peer), then group, slot,
/// lane and the entries of `after`. What it does not have is -1, and nothing stands behind the last
/// that it has. Operation and lane are indices into lists of names which the document brings along,
/// so that plans outlive changes of the list of operations.
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

}  // namespace contraflow
