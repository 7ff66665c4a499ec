#pragma once

#include <string>

namespace contraflow {

/// A new unique id of NCCL, as bytes: made by one process, for all that are to become one of its
/// communicators. Needs no GPU. Throws Error with NCCL's message.
std::string NewNcclId();

}  // namespace contraflow
