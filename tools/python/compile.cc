#include "schedules/compile.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tools/cli/compile_flags.h"
#include "tools/cli/options.h"
#include "tools/python/bindings.h"

namespace contraflow::python {
namespace {

/// The plan that the keywords ask for; of several placements the shortest, the first of those.
std::shared_ptr<PlanObject> CompilePlan(py::kwargs keywords) {
  CompileFlags flags;
  std::vector<std::string> placements;
  TakeCosts(&keywords, &flags.costs);
  if (keywords.contains("placement") && !py::isinstance<py::str>(keywords["placement"])) {
    const py::object listed = keywords.attr("pop")("placement");
    if (!listed.is_none()) {
      for (const py::handle placement : listed) placements.push_back(py::str(placement));
    }
  }
  ParseOptions(WordsOf(keywords), [&](CLI::App* app) { AddCompileOptions(app, &flags); });
  std::vector<std::string> assumed;
  auto plan = UntilInterrupted([&](const std::atomic<bool>& stop) {
    const auto compiled = [&] {
      CompileRequest request = ResolveCompile(flags, &assumed);
      request.options.control.stop = &stop;
      return Compile(request.spec, request.options);
    };
    if (placements.empty()) return std::make_shared<PlanObject>(compiled());
    std::optional<Plan> best;
    for (const std::string& placement : placements) {
      flags.search.placement = placement;
      Plan made = compiled();
      if (!best || made.provenance->makespan < best->provenance->makespan) best = std::move(made);
    }
    return std::make_shared<PlanObject>(std::move(*best));
  });
  Warn(assumed, 2);
  return plan;
}

}  // namespace

void BindCompile(py::module_& module) { module.def("compile", &CompilePlan); }

}  // namespace contraflow::python
