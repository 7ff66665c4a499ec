#pragma once

#include <string>

namespace contraflow {

/// What the linker made of all that this program consists of (the GNU build ID), 40 hexadecimal
/// digits; "unknown" if it was linked without.
std::string BuildId();

}  // namespace contraflow
