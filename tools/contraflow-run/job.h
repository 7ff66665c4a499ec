#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/launch/process_run.h"

namespace contraflow {

class Control;

/// What all processes of a job throw alike.
struct JobError : Error {
  using Error::Error;
};

/// The processes that train together: this one on its own, or those under a Control. All of them
/// make the same calls in the same order.
class Job {
 public:
  Job() = default;
  /// `name` is what a process is called.
  Job(Control* control, std::function<std::string(int process)> name)
      : control_(control), name_(std::move(name)) {}

  int process() const;
  int processes() const;
  /// Whether this is the process that reports.
  bool leads() const { return process() == 0; }

  /// Everybody's bytes, by process, for the one that leads; the others get nothing.
  std::vector<std::string> Gather(std::string_view bytes);
  /// Those of the one that leads, for all.
  std::string Broadcast(std::string_view bytes);
  void Barrier();
  /// Throws JobError, on every process with the same text, unless all have the same facts.
  void Agree(const std::vector<Fact>& facts);

 private:
  Control* control_ = nullptr;
  std::function<std::string(int process)> name_;
};

}  // namespace contraflow
