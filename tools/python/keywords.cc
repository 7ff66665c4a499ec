#include <pybind11/stl.h>

#include <cctype>
#include <string>

#include "compiler/plan/error.h"
#include "tools/cli/exit.h"
#include "tools/python/bindings.h"

namespace contraflow::python {
namespace {

/// The value of an option as text: numbers as Python prints them, lists with commas.
std::string ValueOf(const std::string& name, const py::handle& value) {
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  if (py::hasattr(value, "__fspath__")) return value.attr("__fspath__")().cast<std::string>();
  if (py::hasattr(value, "__iter__")) {
    std::string list;
    for (const py::handle item : value) {
      list += (list.empty() ? "" : ",") + ValueOf(name, item);
    }
    return list;
  }
  // 80e9 bytes are a whole number of them.
  const bool whole = py::isinstance<py::float_>(value) && value.attr("is_integer")().cast<bool>();
  const std::string text = py::str(whole ? py::int_(py::reinterpret_borrow<py::object>(value))
                                         : py::reinterpret_borrow<py::object>(value));
  return name == "budget" ? text + "s" : text;
}

}  // namespace

std::string WithKeywords(const std::string& text) {
  const std::string flags = WithFlags(text);
  std::string out;
  for (size_t at = 0; at < flags.size(); ++at) {
    const bool flag = flags.compare(at, 2, "--") == 0 && (at == 0 || flags[at - 1] != '-') &&
                      at + 2 < flags.size() && std::islower(flags[at + 2]) != 0;
    if (!flag) {
      out += flags[at];
      continue;
    }
    for (at += 2; at < flags.size(); ++at) {
      if (std::islower(flags[at]) == 0 && flags[at] != '-') break;
      out += flags[at] == '-' ? '_' : flags[at];
    }
    --at;
  }
  return out;
}

std::vector<std::string> WordsOf(const py::dict& keywords) {
  std::vector<std::string> words;
  for (const auto& [key, value] : keywords) {
    if (value.is_none() || value.is(py::bool_(false))) continue;
    std::string name = key.cast<std::string>();
    if (name.ends_with('_')) name.pop_back();  // for_, as `for` is a word of Python's
    std::string word = "--";
    for (const char c : name) word += c == '_' ? '-' : c;
    const std::string text = value.is(py::bool_(true)) ? "true" : ValueOf(name, value);
    if (text.empty()) throw Error(name + ": is empty; leave it out");
    words.push_back(word + "=" + text);
  }
  return words;
}

namespace {

/// A dict as the text of a cost file; measured costs may be numbers and arrays of numpy.
std::string TextOf(const py::object& costs) {
  const py::object plain = py::module_::import("operator").attr("methodcaller")("tolist");
  try {
    return py::module_::import("json")
        .attr("dumps")(costs, py::arg("default") = plain, py::arg("allow_nan") = false)
        .cast<std::string>();
  } catch (py::error_already_set& error) {
    // AttributeError: what is neither JSON nor numpy's; ValueError: NaN, or a dict within itself.
    if (!error.matches(PyExc_AttributeError) && !error.matches(PyExc_ValueError)) throw;
    throw Error("costs: must hold numbers, text, lists and dicts alone, and finite numbers (" +
                std::string(py::str(error.value())) + ")");
  }
}

}  // namespace

void TakeCosts(py::dict* keywords, CostsOption* option) {
  const py::object costs = keywords->attr("pop")("costs", py::none());
  if (costs.is_none()) return;
  if (py::isinstance<CostModel>(costs)) {
    option->read = costs.cast<CostModel>();
  } else if (py::isinstance<py::dict>(costs)) {
    option->text = TextOf(costs);
  } else if (py::isinstance<py::str>(costs) || py::hasattr(costs, "__fspath__")) {
    option->file = ValueOf("costs", costs);
  } else {
    throw py::type_error("costs: must be a Costs, a dict, or the name of a file or a profile");
  }
}

void Warn(const std::vector<std::string>& assumed, int depth) {
  for (const std::string& what : assumed) {
    const std::string text = WithKeywords(what);
    if (PyErr_WarnEx(PyExc_UserWarning, text.c_str(), depth) != 0) throw py::error_already_set();
  }
}

}  // namespace contraflow::python
