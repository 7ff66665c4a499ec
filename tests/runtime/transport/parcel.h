#pragma once

#include <span>
#include <utility>
#include <vector>

#include "compiler/plan/instruction.h"
#include "runtime/core/transport.h"

namespace contraflow {

/// A transfer and the numbers it carries.
struct Parcel {
  Parcel(const char* instruction, std::vector<float> the_numbers)
      : numbers(std::move(the_numbers)),
        transfer{ParseInstruction(instruction), std::as_writable_bytes(std::span(numbers))} {}
  Parcel(const Parcel&) = delete;

  std::vector<float> numbers;
  Transfer transfer;
};

inline void Post(Transport& transport, Parcel& parcel) {
  Transfer* const group[] = {&parcel.transfer};
  transport.Post(group);
}

}  // namespace contraflow
