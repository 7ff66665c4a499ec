// Any text is an instruction or an Error, and an instruction survives writing.

#include "compiler/plan/instruction.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "compiler/plan/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  contraflow::Instruction instruction;
  try {
    instruction = contraflow::ParseInstruction({reinterpret_cast<const char*>(data), size});
  } catch (const contraflow::Error&) {
    return 0;
  }
  const std::string text = contraflow::ToString(instruction);
  CF_ASSERT(contraflow::ParseInstruction(text) == instruction);
  // Keys may come in any order but nothing may be lost or added.
  CF_ASSERT(text.size() == size);
  return 0;
}
