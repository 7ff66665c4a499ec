#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
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

/// A plan as Python holds it, which never changes; figures are made when they are first asked
/// for.
class PlanObject {
 public:
  explicit PlanObject(Plan made) : plan(std::move(made)) {}
  ~PlanObject();
  PlanObject(const PlanObject&) = delete;
  PlanObject& operator=(const PlanObject&) = delete;

  const Plan plan;

  /// A tuple of instructions for each rank, made once. With the GIL.
  py::tuple Programs();
  /// Throws Unsound. Without the GIL.
  void Verify() const;
  void Verify(Semantics semantics) const;
  /// The report of a sound plan in its own costs. Without the GIL.
  const Report& report() const;
  bool has_report() const;

 private:
  py::object programs_;  ///< none before they are asked for
  mutable std::mutex mutex_;
  mutable bool sound_ = false;
  mutable std::optional<Report> report_;
};

/// Text of the TypeError for an object of the class of T without a value, as __new__ makes it.
template <typename T>
inline std::string no_value;

/// Stands for the memory that pybind11 would give to such an object.
template <typename T>
void* RefuseEmpty(size_t) {
  throw py::type_error(no_value<T>);
}

/// A class of the module; `source` says where its objects come from: "compare() makes one".
template <typename T, typename... Holder>
py::class_<T, Holder...> NewClass(py::module_& module, const char* name, const char* source,
                                  const char* doc) {
  py::class_<T, Holder...> made(module, name, doc);
  no_value<T> = std::string("this ") + name + " has no value, __new__ made it; " + source;
  py::detail::get_type_info(typeid(T))->operator_new = &RefuseEmpty<T>;
  return made;
}

}  // namespace contraflow::python

/// A Plan as shared_ptr, but for one without a value, which pybind11 would not name.
template <>
class pybind11::detail::type_caster<std::shared_ptr<contraflow::python::PlanObject>>
    : public copyable_holder_caster<contraflow::python::PlanObject,
                                    std::shared_ptr<contraflow::python::PlanObject>> {
 public:
  bool load(handle source, bool convert) {
    try {
      return copyable_holder_caster::load(source, convert);
    } catch (const cast_error&) {
      throw type_error(contraflow::python::no_value<contraflow::python::PlanObject>);
    }
  }
};

namespace contraflow::python {

/// Runs `work` on a thread of its own, without the GIL. Ctrl-C sets `stop` and is raised once
/// `work` has ended, or half a second later: what does not look at `stop` goes on alone, and must
/// own all that it uses. With the GIL.
void RunApart(std::function<void()> work, std::atomic<bool>* stop);

/// Like RunApart, for work with a result; it gets `stop`.
template <typename Work>
auto UntilInterrupted(Work work) {
  using Result = std::invoke_result_t<Work&, const std::atomic<bool>&>;
  const auto stop = std::make_shared<std::atomic<bool>>(false);
  const auto task = std::make_shared<std::packaged_task<Result()>>(
      [work = std::move(work), stop]() mutable { return work(*stop); });
  RunApart([task] { (*task)(); }, stop.get());
  return task->get_future().get();
}

/// Keyword arguments as options of the command line, those that are not None or False: memory_limit
/// = "1x" is "--memory-limit=1x". With the GIL.
std::vector<std::string> WordsOf(const py::dict& keywords);

/// The costs that the argument `costs` and the keywords of a function (f, b, w, ...) say. Raises
/// TypeError for other keywords. With the GIL.
CostsOption CostsOptionOf(const char* function, const py::object& costs, py::kwargs keywords);

/// A path or several, of the argument of that name. With the GIL.
std::vector<std::string> PathsOf(const char* name, const py::object& paths);

/// Options of the command line, as AddCompileOptions adds them.
using AddOptions = std::function<void(CLI::App*)>;

/// A line for each keyword of a function that takes these options, as --help has it.
std::string KeywordLines(const AddOptions& add);

/// The text of help() for a function that CostsOptionOf reads the keywords of: these have a line
/// each.
std::string WithCostsKeywords(const std::string& text);

/// Defines a function whose keywords are the options of a command, which its docstring lists.
template <typename Flags, typename Function>
void DefCommand(py::module_& module, const char* name, Function function,
                void (*add)(CLI::App*, Flags*)) {
  py::options options;
  options.disable_function_signatures();
  Flags flags;
  const std::string lines = KeywordLines([&](CLI::App* app) { add(app, &flags); });
  module.def(name, function, lines.c_str());
}

/// A dict as JSON; it may hold numbers and arrays of numpy. Throws Error about `name`. With the
/// GIL.
std::string JsonOf(const std::string& name, const py::object& value);

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

void BindInterrupt();
void BindErrors(py::module_& module);
void BindCosts(py::module_& module);
PlanClass BindPlan(py::module_& module);
void BindSimulation(py::module_& module, PlanClass* plan);
void BindInterop(PlanClass* plan);
void BindCompile(py::module_& module);
void BindCompare(py::module_& module);
void BindPlanner(py::module_& module);
void BindDiff(py::module_& module);

}  // namespace contraflow::python
