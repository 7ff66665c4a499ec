#pragma once

#include <functional>
#include <string>
#include <thread>

namespace contraflow {

/// Starts a thread that leaves signals to others, except for its own faults. Throws Error where the
/// system has no room for it; `what` says what it is for.
std::thread StartQuietly(const std::string& what, std::function<void()> work);

}  // namespace contraflow
