#include <pybind11/stl.h>

#include <memory>
#include <optional>

#include "compiler/files/cost_io.h"
#include "compiler/files/file.h"
#include "tools/cli/options.h"
#include "tools/cli/spec_options.h"
#include "tools/python/bindings.h"
#include "tools/report/report.h"

namespace contraflow::python {
namespace {

/// A cost file or profile, a dict as in cost files, or unit costs; with the times that are given
/// put over them.
CostModel MakeCosts(const py::object& source, py::kwargs keywords) {
  CostsOption option;
  keywords["costs"] = source;
  TakeCosts(&keywords, &option);
  ParseOptions(WordsOf(keywords), [&](CLI::App* app) { AddCostsOptions(app, &option, ""); });
  return ResolveCosts(option, UnitCosts());
}

}  // namespace

void BindCosts(py::module_& module) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<CostModel>(module, "Costs", "What stages or layers take in time and memory.")
      .def(py::init(&MakeCosts), py::arg("source") = py::none(),
           "From a cost file, the name of a profile that ships, a dict as in cost files, or other "
           "costs; f, b, w, bw, fb, comm, host_link, overlap and split are put over them.")
      .def_static(
          "from_json", [](const std::string& text) { return ReadCosts(text, "costs"); },
          py::arg("text"), release, "Reads the text of a cost file.")
      .def("to_json", &WriteCosts, release, "The text of a cost file; same costs, same text.")
      .def(
          "save",
          [](const CostModel& costs, const std::string& path) {
            WriteFile(path, WriteCosts(costs));
          },
          py::arg("path"), release, "Writes a cost file.")
      .def_property_readonly(
          "unit", [](const CostModel& costs) { return Name(costs.unit); },
          "Of its times: \"ns\" \"us\" \"ms\" \"s\" or \"unit\".")
      .def("__eq__", [](const CostModel& a, const CostModel& b) { return a == b; })
      .def("__eq__", [](const CostModel&, const py::object&) { return false; })
      .def("__repr__",
           [](const CostModel& costs) { return "<Costs " + DescribeCosts(costs) + ">"; })
      .attr("__hash__") = py::none();
}

}  // namespace contraflow::python
