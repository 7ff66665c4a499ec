#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "compiler/plan/error.h"
#include "compiler/plan/instruction.h"

namespace contraflow {

// What every transport says about messages that do not fit together. `who` is the other device.

Error NoSuchRank(int rank);
Error WrongMessage(const Instruction& receive, const std::string& who, const Instruction& sent);
Error WrongSize(const Instruction& receive, size_t expected, const std::string& who, uint64_t sent);
Error NoHolder();
Error OtherCount(size_t count, const std::string& who);
Error WrongParts(const Instruction& exchange, size_t members, size_t send, size_t receive);
Error WrongPart(const Instruction& exchange, size_t expected, const std::string& who,
                uint64_t sent);
/// `here` and `there` are the instructions that two members of an expert group are at.
Error OtherExchange(const std::string& self, const Instruction& here, const std::string& who,
                    const Instruction& there);
/// Likewise of two holders of a stage.
Error OtherReduction(const std::string& self, const Instruction& here, const std::string& who,
                     const Instruction& there);

/// Whether two members are at the same exchange.
bool SameExchange(const Instruction& a, const Instruction& b);

}  // namespace contraflow
