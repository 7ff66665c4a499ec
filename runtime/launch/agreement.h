#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace contraflow {

/// Something that all processes of a job must have alike before its first step.
struct Fact {
  std::string noun;   ///< "plan", "seed", ...
  std::string key;    ///< what is compared
  std::string shown;  ///< how a message shows it, e.g. with the path; may differ

  bool operator==(const Fact&) const = default;
};

/// The facts of a process as bytes, for another one, and back. ReadFacts throws Error if they are
/// no such facts.
std::string WriteFacts(std::span<const Fact> facts);
std::vector<Fact> ReadFacts(std::string_view bytes);

/// "" if all processes have the same facts as process 0, else what the first that has not has
/// differently, with both values, and who else does not agree. Facts are compared in their order:
/// what explains others comes first. `name` is what a process is called.
std::string Disagreement(std::span<const std::vector<Fact>> by_process,
                         const std::function<std::string(int process)>& name);

}  // namespace contraflow
