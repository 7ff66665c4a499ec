#include "tools/planner/planner.h"

#include <pybind11/stl.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/planner/estimate.h"
#include "tools/planner/plan_flags.h"
#include "tools/python/bindings.h"

namespace contraflow::python {
namespace {

/// The best ways to train a model on a number of GPUs, each with its plan.
struct PlansObject {
  PlanRequest request;
  PlannerResult result;
  std::vector<std::shared_ptr<PlanObject>> plans;  ///< of the rows
};

std::shared_ptr<PlansObject> Planned(const py::kwargs& keywords) {
  PlanFlags flags;
  const py::object model = keywords["model"];
  if (py::isinstance<py::dict>(model)) {
    flags.config = JsonOf("model", model);
    keywords["model"] = "model";
  }
  ParseOptions(WordsOf(keywords), [&](CLI::App* app) { AddPlanOptions(app, &flags); });
  return UntilInterrupted([flags](const std::atomic<bool>& stop) {
    auto made = std::make_shared<PlansObject>(PlansObject{ResolvePlan(flags), {}, {}});
    made->result = FindPlans(made->request, {}, &stop);
    for (const PlannerRow& row : made->result.rows) {
      made->plans.push_back(std::make_shared<PlanObject>(row.plan));
    }
    return made;
  });
}

py::object PlansDocument(const PlansObject& self) {
  return py::module_::import("json").attr("loads")(PlansToJson(self.request, self.result));
}

const PlannerRow& RowOf(const PlansObject& self, const char* caller, size_t row) {
  if (row < self.result.rows.size()) return self.result.rows[row];
  throw py::index_error(std::string(caller) + ": there are " +
                        std::to_string(self.result.rows.size()) + " rows");
}

/// The costs of a row, as `contraflow costs init` writes them.
std::string CostFileOf(const PlansObject& self, size_t row) {
  return PlannerCosts(self.request).TextOf(RowOf(self, "costs_of", row).configuration);
}

void WriteFiles(const PlansObject& self, const Path& folder, size_t row) {
  WriteRow(self.request, RowOf(self, "write", row), folder.string());
}

}  // namespace

void BindPlanner(py::module_& module) {
  NewClass<PlansObject, std::shared_ptr<PlansObject>>(
      module, "Plans", "plan() makes one",
      "The best ways to train a model on a number of GPUs, the shortest step first.")
      .def_property_readonly(
          "rows", [](const PlansObject& self) -> py::object { return PlansDocument(self)["rows"]; },
          "A dict for each, as `contraflow plan --json` has it.")
      .def_property_readonly(
          "plans", [](const PlansObject& self) { return self.plans; },
          "The plan of each row, with its costs.")
      .def_property_readonly(
          "best", [](const PlansObject& self) { return self.plans.front(); },
          "The plan of the first row.")
      .def_property_readonly(
          "assumptions",
          [](const PlansObject& self) -> py::object { return PlansDocument(self)["assumptions"]; },
          "What the figures rest on, a line each.")
      .def_property_readonly(
          "rejected",
          [](const PlansObject& self) -> py::object { return PlansDocument(self)["rejected"]; },
          "How many configurations were not searched, by reason.")
      .def("costs_of", &CostFileOf, py::arg("row") = 0,
           "The text of a row's cost file, with where each figure comes from.")
      .def("write", &WriteFiles, py::arg("folder"), py::arg("row") = 0,
           "Writes the costs, the plan and the command of a row, and what starts its framework.")
      .def("__len__", [](const PlansObject& self) { return self.plans.size(); })
      .def("__str__", [](const PlansObject& self) { return WritePlans(self.request, self.result); })
      .def("__repr__", [](const PlansObject& self) {
        return "<Plans, " + std::to_string(self.plans.size()) + " for " +
               std::to_string(self.request.gpus) + " x " + self.request.gpu.name + ">";
      });
  DefCommand(module, "plan", &Planned, &AddPlanOptions);
}

}  // namespace contraflow::python
