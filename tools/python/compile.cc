#include "schedules/compile.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <sstream>
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
  TakeCosts(&keywords, &flags.costs);
  const bool listed =
      keywords.contains("placement") && !py::isinstance<py::str>(keywords["placement"]);
  ParseOptions(WordsOf(keywords), [&](CLI::App* app) { AddCompileOptions(app, &flags); });
  std::vector<std::string> placements;
  if (listed && flags.search.placement) {
    std::istringstream names(*flags.search.placement);
    for (std::string name; std::getline(names, name, ',');) placements.push_back(name);
  }
  auto [plan, assumed] =
      UntilInterrupted([flags, placements](const std::atomic<bool>& stop) mutable {
        std::vector<std::string> said;
        const auto compiled = [&] {
          CompileRequest request = ResolveCompile(flags, &said);
          // Some of several placements may have as many.
          if (placements.size() < 2) CheckChunks(request.spec);
          request.options.control.stop = &stop;
          return NamingCosts(flags.costs, [&] { return Compile(request.spec, request.options); });
        };
        if (placements.empty()) return std::pair(std::make_shared<PlanObject>(compiled()), said);
        std::optional<Plan> best;
        for (const std::string& placement : placements) {
          flags.search.placement = placement;
          Plan made = compiled();
          if (!best || made.provenance->makespan < best->provenance->makespan) {
            best = std::move(made);
          }
        }
        return std::pair(std::make_shared<PlanObject>(std::move(*best)), said);
      });
  Warn(assumed, 2);
  return plan;
}

}  // namespace

void BindCompile(py::module_& module) {
  DefCommand(module, "compile", &CompilePlan, &AddCompileOptions);
}

}  // namespace contraflow::python
