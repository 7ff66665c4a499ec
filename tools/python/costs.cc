#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compiler/files/cost_io.h"
#include "compiler/files/file.h"
#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "tools/cli/spec_options.h"
#include "tools/profile/profile.h"
#include "tools/python/bindings.h"
#include "tools/report/report.h"

namespace contraflow::python {
namespace {

/// A cost file or profile, a dict as in cost files, or unit costs; with the times that are given
/// put over them.
CostModel MakeCosts(const py::object& source, py::kwargs keywords) {
  const CostsOption option = CostsOptionOf("Costs", source, std::move(keywords));
  std::vector<std::string> assumed;
  CostModel costs = ResolveCosts(option, UnitCosts(), &assumed);
  Warn(assumed, 1);
  return costs;
}

/// Reads costs from profiles of one run; the table of measurements goes to the log.
CostModel FromProfiles(const py::object& paths, const std::optional<std::string>& form,
                       const std::shared_ptr<PlanObject>& plan, double split, int warmup,
                       const LogShape& log) {
  const std::vector<std::string> files = PathsOf("paths", paths);
  if (!(split >= 0 && split <= 1)) {
    throw Error("split: must be in 0..1, is " + py::str(py::float_(split)).cast<std::string>());
  }
  ProfileOptions options = {
      .plan = plan ? &plan->plan : nullptr, .log = log, .split = split, .warmup = warmup};
  if (form) options.from = ParseProfileForm(*form);
  const ProfiledCosts profile = UntilInterrupted(
      [plan, files, options](const std::atomic<bool>&) { return Profile(files, options); });
  py::module_::import("logging")
      .attr("getLogger")("contraflow")
      .attr("info")("%s", ProfileText(profile));
  Warn(profile.notes, 1);
  return profile.costs;
}

}  // namespace

void BindCosts(py::module_& module) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  NewClass<CostModel>(module, "Costs", "Costs() makes one",
                      "What stages or layers take in time and memory.")
      .def(py::init(&MakeCosts), py::arg("source") = py::none(),
           WithCostsKeywords("From a cost file, the name of a profile that ships, a dict as in "
                             "cost files, or other costs. The keywords are put over them.")
               .c_str())
      .def_static(
          "from_json", [](const std::string& text) { return ReadCosts(text, "costs"); },
          py::arg("text"), release, "Reads the text of a cost file.")
      .def_static(
          "from_profile",
          [](const py::object& paths, const std::optional<std::string>& form,
             const std::shared_ptr<PlanObject>& plan, double split, int warmup, int ranks,
             int chunks, int microbatches) {
            return FromProfiles(paths, form, plan, split, warmup,
                                {.ranks = ranks, .chunks = chunks, .microbatches = microbatches});
          },
          py::arg("paths"), py::arg("form") = py::none(), py::kw_only(), py::arg("plan") = nullptr,
          py::arg("split") = 0.5, py::arg("warmup") = -1, py::arg("ranks") = LogShape{}.ranks,
          py::arg("chunks") = LogShape{}.chunks, py::arg("microbatches") = LogShape{}.microbatches,
          "Measured times of one run, one file or several, in the forms of `contraflow profile`; "
          "without `form` as each file looks. Warns of what was assumed; the table of what was "
          "measured goes to the log \"contraflow\".")
      .def_static(
          "from_kineto",
          [](const py::object& paths, const std::shared_ptr<PlanObject>& plan, double split,
             int warmup) { return FromProfiles(paths, "kineto", plan, split, warmup, {}); },
          py::arg("paths"), py::kw_only(), py::arg("plan") = nullptr, py::arg("split") = 0.5,
          py::arg("warmup") = -1, "The same of traces of PyTorch's profiler, one a rank.")
      .def("to_json", &WriteCosts, release, "The text of a cost file; same costs, same text.")
      .def(
          "save",
          [](const CostModel& costs, const Path& path) {
            WriteFile(path.string(), WriteCosts(costs));
          },
          py::arg("path"), release, "Writes a cost file.")
      .def_property_readonly(
          "unit", [](const CostModel& costs) { return Name(costs.unit); },
          "Of its times: \"ns\" \"us\" \"ms\" \"s\" or \"unit\".")
      .def("__eq__", [](const CostModel& a, const CostModel& b) { return a == b; })
      .def("__eq__", [](const CostModel&, const py::object&) { return false; })
      .def(py::pickle(&WriteCosts,
                      [](const std::string& text) { return ReadCosts(text, "pickle"); }))
      .def("__copy__", [](const CostModel& costs) { return costs; })
      .def("__deepcopy__", [](const CostModel& costs, const py::dict&) { return costs; })
      .def("__repr__",
           [](const CostModel& costs) { return "<Costs " + DescribeCosts(costs) + ">"; })
      .attr("__hash__") = py::none();
}

}  // namespace contraflow::python
