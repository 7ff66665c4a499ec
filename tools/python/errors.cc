#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>

#include "compiler/plan/error.h"
#include "tools/cli/exit.h"
#include "tools/python/bindings.h"

namespace contraflow::python {

Unsound::Unsound(std::vector<Finding> found, const std::string& text)
    : std::runtime_error(text), findings(std::move(found)) {}

namespace {

/// An exception class of the package.
py::object NewError(py::module_& module, const char* name, const char* doc, PyObject* base) {
  const std::string full = std::string("contraflow.") + name;
  auto type = py::reinterpret_steal<py::object>(
      PyErr_NewExceptionWithDoc(full.c_str(), doc, base, nullptr));
  if (!type) throw py::error_already_set();
  module.attr(name) = type;
  return type;
}

}  // namespace

void BindErrors(py::module_& module) {
  NewClass<Finding>(module, "Finding", "`findings` of an Unsound are some",
                    "One violation that verify found.")
      .def_readonly("check", &Finding::check, "Name of the check, such as \"deadlock\".")
      .def_property_readonly(
          "rank",
          [](const Finding& finding) {
            return finding.rank < 0 ? std::optional<int>() : finding.rank;
          },
          "None: the plan as a whole.")
      .def_property_readonly(
          "index",
          [](const Finding& finding) {
            return finding.index < 0 ? std::optional<int>() : finding.index;
          },
          "Of the instruction in the rank's program; None: the program as a whole.")
      .def_property_readonly(
          "message", [](const Finding& finding) { return WithKeywords(finding.message); },
          "What is wrong, where.")
      .def(py::pickle(
          [](const Finding& finding) {
            return py::make_tuple(finding.check, finding.rank, finding.index, finding.message);
          },
          [](const py::tuple& state) {
            return Finding{.check = state[0].cast<std::string>(),
                           .rank = state[1].cast<int>(),
                           .index = state[2].cast<int>(),
                           .message = state[3].cast<std::string>()};
          }))
      .def(
          "__eq__", [](const Finding& a, const Finding& b) { return a == b; }, py::is_operator())
      .def("__hash__",
           [](const Finding& finding) {
             return py::hash(
                 py::make_tuple(finding.check, finding.rank, finding.index, finding.message));
           })
      .def("__repr__", [](const Finding& finding) {
        return "<Finding " + finding.check + ": " + WithKeywords(finding.message) + ">";
      });

  static PyObject* error = nullptr;  // as long as the process, like the module
  static PyObject* unsound = nullptr;
  error = NewError(module, "Error",
                   "The input is wrong: says where, what is wrong there and what would be right.",
                   PyExc_ValueError)
              .release()
              .ptr();
  unsound =
      NewError(module, "Unsound", "A plan is not sound; `findings` lists every violation.", error)
          .release()
          .ptr();
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(std::move(thrown));
    } catch (const Unsound& e) {
      py::object made = py::handle(unsound)(WithKeywords(e.what()));
      made.attr("findings") = e.findings;
      PyErr_SetObject(unsound, made.ptr());
    } catch (const Error& e) {
      PyErr_SetString(error, WithKeywords(e.what()).c_str());
    } catch (const UsageError& e) {
      PyErr_SetString(error, WithKeywords(e.what()).c_str());
    }
  });
}

}  // namespace contraflow::python
