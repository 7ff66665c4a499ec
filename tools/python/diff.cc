#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/python/bindings.h"
#include "tools/report/difference.h"
#include "tools/report/report.h"

namespace contraflow::python {
namespace {

using Self = std::shared_ptr<PlanObject>;

py::object DiffOf(const Self& plan, const Self& other) {
  const std::string text = UntilInterrupted([plan, other](const std::atomic<bool>&) {
    return FormatJson("diff", DifferenceToJson(Differ(plan->plan, other->plan), true));
  });
  return py::module_::import("json").attr("loads")(text);
}

}  // namespace

void BindDiff(py::module_& module) {
  module.def("diff", &DiffOf, py::arg("plan").none(false), py::arg("other").none(false),
             "What differs between two plans, as `contraflow diff --json` has it: the figures of "
             "both, \"was\" and \"is\", and of each rank that differs how many lines are removed "
             "and added. Also the lines themselves, as a unified diff: \"edits\" of a "
             "rank, and \"fields\" of what stands above the programs.");
}

}  // namespace contraflow::python
