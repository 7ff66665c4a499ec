#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/verify/verify.h"
#include "schedules/report.h"
#include "tools/cli/spec_options.h"
#include "tools/report/report.h"

namespace contraflow::python {

namespace py = pybind11;

/// A plan is not sound: contraflow.Unsound.
struct Unsound : std::runtime_error {
  Unsound(std::vector<Finding> found, const std::string& text);
  std::vector<Finding> findings;
};

/// What Python holds of a plan, which never changes; figures are made when they are first asked
/// for.
class PlanObject {
 public:
  explicit PlanObject(Plan made) : plan(std::move(made)) {}

  const Plan plan;

  /// A tuple of instructions for each rank, made once. With the GIL.
  py::tuple Programs();
  /// Throws Unsound. Without the GIL.
  void Verify() const;
  void Verify(Semantics semantics) const;
  /// Of a sound plan in its own costs. Without the GIL.
  const Report& report() const;

 private:
  py::object programs_;  ///< none before they are asked for
  mutable std::mutex mutex_;
  mutable bool sound_ = false;
  mutable std::optional<Report> report_;
};

/// Runs `work`, which ends soon after `stop` is set, on a thread of its own, without the GIL;
/// Ctrl-C sets `stop`, and is raised once `work` has ended. With the GIL.
template <typename Work>
auto UntilInterrupted(Work work) {
  std::atomic<bool> stop = false;
  bool interrupted = false;
  auto result = std::async(std::launch::async, [&] { return work(stop); });
  {
    const py::gil_scoped_release others;
    while (result.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) {
      const py::gil_scoped_acquire mine;
      if (!interrupted && PyErr_CheckSignals() != 0) stop = interrupted = true;
    }
  }
  if (interrupted) throw py::error_already_set();
  return result.get();
}

/// What the library or the command line says, in the words of Python: --memory-limit and
/// `memory_limit` are memory_limit there.
std::string WithKeywords(const std::string& text);

/// Keyword arguments as options of the command line, those that are not None or False: memory_limit
/// = "1x" is "--memory-limit=1x". With the GIL.
std::vector<std::string> WordsOf(const py::dict& keywords);

/// Takes "costs" out of keyword arguments and puts it where AddCostsOptions would: a file or a
/// profile by name, a Costs, or a dict as in cost files. With the GIL.
void TakeCosts(py::dict* keywords, CostsOption* option);

/// Figures that a plan, in its own costs, and a simulation share: `property` adds one of them, a
/// function of a Report.
template <typename Property>
void BindFigures(const Property& property) {
  property(
      "unit", [](const Report& r) { return Name(r.unit); },
      "Of its times: \"ns\", \"us\", \"ms\", \"s\" or \"unit\".");
  property(
      "makespan", [](const Report& r) { return FromTicks(r.simulation.makespan, r.unit); },
      "Predicted time of a step.");
  property(
      "bubble_ratio", [](const Report& r) { return r.simulation.bubble_ratio(); },
      "Share of the ranks' time in which they compute nothing.");
  property(
      "bound", [](const Report& r) { return FromTicks(r.bound.value, r.unit); },
      "Proven lower bound on the makespan of every schedule with this placement.");
  property(
      "bound_reason", [](const Report& r) { return DescribeBound(r.bound, r.unit); },
      "What the bound rests on, such as \"busy rank, rank 3: head 3 + work 24\".");
  property(
      "gap", [](const Report& r) { return r.gap(); }, "(makespan - bound) / bound");
}

/// A Python warning for each of what was assumed of costs, about the line of the caller or, with
/// `depth` 2, of whoever called that. With the GIL.
void Warn(const std::vector<std::string>& assumed, int depth);

using PlanClass = py::class_<PlanObject, std::shared_ptr<PlanObject>>;

/// Writes the text, or returns it where there is no path to write it to.
using Path = std::filesystem::path;
std::optional<std::string> Written(std::string text, const std::optional<Path>& path);

void BindErrors(py::module_& module);
void BindCosts(py::module_& module);
PlanClass BindPlan(py::module_& module);
void BindSimulation(py::module_& module, PlanClass* plan);
void BindInterop(PlanClass* plan);
void BindCompile(py::module_& module);
void BindCompare(py::module_& module);

}  // namespace contraflow::python
