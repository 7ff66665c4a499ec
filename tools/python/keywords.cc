#include <pybind11/stl/filesystem.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "compiler/plan/error.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/terminal.h"
#include "tools/python/bindings.h"

namespace contraflow::python {
namespace {

/// Keywords that take lists, and those of costs.
constexpr std::array kLists = {"placement", "recompute", "offload",
                               "partition", "schedules", "only"};
constexpr std::array kTimes = {"f", "b", "w", "bw", "fb", "comm", "split", "host_link", "overlap"};

template <typename Names>
bool Has(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

[[noreturn]] void RefuseType(const std::string& name, const std::string& wanted,
                             const py::handle& value) {
  const auto type = value.get_type().attr("__name__").cast<std::string>();
  throw py::type_error(name + ": must be " + wanted + ", is of type " + type);
}

std::string TextOf(const std::string& name, const py::handle& value) {
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
  if (text == nullptr) {
    PyErr_Clear();
    throw Error(name + ": is not valid Unicode; a surrogate stands alone in it");
  }
  const std::string copy(text, static_cast<size_t>(size));
  if (copy.find('\0') != std::string::npos) throw Error(name + ": must not contain a zero byte");
  return copy;
}

/// A number as decimal text; nothing for what is none.
std::optional<std::string> NumberOf(const std::string& name, const py::handle& value) {
  PyObject* const object = value.ptr();
  const bool whole = PyIndex_Check(object) != 0;
  if (PyBool_Check(object) != 0) return std::nullopt;
  if (!whole && PyFloat_Check(object) == 0 && !py::hasattr(value, "__float__")) return std::nullopt;
  try {
    py::object number =
        py::reinterpret_steal<py::object>(whole ? PyNumber_Index(object) : PyNumber_Float(object));
    if (!number) throw py::error_already_set();
    const double real = whole ? 0 : number.cast<double>();
    if (name == "budget" && !whole) {
      if (!std::isfinite(real)) throw Error("budget: must be a finite number of seconds");
      return std::to_string(real) + "s";
    }
    // 80e9 bytes are a whole number of them.
    if (!whole && std::isfinite(real) && std::trunc(real) == real) number = py::int_(number);
    return py::str(number).cast<std::string>() + (name == "budget" ? "s" : "");
  } catch (const py::error_already_set& error) {
    // An array that is not one number; too many digits.
    if (error.matches(PyExc_TypeError)) return std::nullopt;
    if (!error.matches(PyExc_ValueError)) throw;
    throw Error(name + ": is too large");
  }
}

/// The value of an option as text: numbers as Python prints them, lists with commas.
std::string ValueOf(const std::string& name, const py::handle& value, bool lists) {
  if (py::isinstance<py::str>(value)) return TextOf(name, value);
  if (std::optional<std::string> number = NumberOf(name, value)) return *std::move(number);
  if (py::hasattr(value, "__fspath__")) {
    const py::object path = value.attr("__fspath__")();
    if (py::isinstance<py::str>(path)) return TextOf(name, path);
  }
  const bool list = py::isinstance<py::iterable>(value) && !PyBytes_Check(value.ptr()) &&
                    !PyByteArray_Check(value.ptr()) && !py::isinstance<py::dict>(value);
  if (!lists || !list) {
    RefuseType(name, lists ? "text, a number or a list of them" : "a number or text", value);
  }
  std::string text;
  for (const py::handle item : value) {
    text += (text.empty() ? "" : ",") + ValueOf(name, item, false);
  }
  return text;
}

}  // namespace

std::vector<std::string> WordsOf(const py::dict& keywords) {
  std::vector<std::string> words;
  for (const auto& [key, value] : keywords) {
    std::string name = key.cast<std::string>();
    if (name.ends_with('_')) name.pop_back();  // for_, as `for` is a word of Python's
    if (value.is_none()) continue;
    std::string word = "--";
    for (const char c : name) word += c == '_' ? '-' : c;
    if (name == "no_auto") {
      if (PyBool_Check(value.ptr()) == 0) RefuseType(name, "True or False", value);
      if (value.is(py::bool_(true))) words.push_back(word);
      continue;
    }
    const std::string text = ValueOf(name, value, Has(kLists, name));
    if (text.empty()) throw Error(name + ": must not be empty");
    words.push_back(word + "=" + text);
  }
  return words;
}

namespace {

/// Passages of --help about the command line alone, each with what Python has in their place.
constexpr std::pair<std::string_view, std::string_view> kForeign[] = {
    {"; - is standard input", ", or a dict as it holds"},
    {"; a list such as 16,32,64 makes a sweep", ""},
    {"; a list such as 1x,1.5x makes a sweep", ""},
    {" (default: step if no COLUMN is given)", ""},
    {"contraflow compile --help", "compile"},
    {"the flags below", "those below"},
    {"cost file (guide: Cost files)", "a Costs, a dict as in cost files, a cost file"}};

/// The text of an option in --help with keywords in place of flags, on one line.
std::string HelpOf(const CLI::Option& option) {
  std::string text = option.get_description();
  std::ranges::replace(text, '\n', ' ');
  for (const auto& [passage, in_place] : kForeign) {
    const size_t at = text.find(passage);
    if (at != std::string::npos) text.replace(at, passage.size(), in_place);
  }
  for (size_t at = 0; (at = text.find("--", at)) != std::string::npos;) {
    const size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz-", at);
    std::string field = FieldOf(text.substr(at, end - at));
    text.replace(at, end - at, WithKeywords(field));
  }
  return text;
}

}  // namespace

std::string KeywordLines(const AddOptions& add) {
  constexpr size_t kNames = 19;
  constexpr int kWidth = 92;
  CLI::App app;
  app.set_help_flag();
  add(&app);
  KnowOptions(app);
  std::string lines;
  for (const CLI::Option* option : app.get_options()) {
    std::string line = "  " + WithKeywords(FieldOf(option->get_name()));
    if (line == "  for") line += '_';
    line.resize(kNames, ' ');
    lines += Wrapped(line + HelpOf(*option), kWidth) + "\n";
  }
  return lines;
}

std::string WithCostsKeywords(const std::string& text) {
  constexpr int kWidth = 92;
  CostsOption option;
  const std::string lines = KeywordLines([&](CLI::App* app) { AddCostsOptions(app, &option, ""); });
  // The first is `costs`, which the text is about.
  return Wrapped(text, kWidth) + "\n\n" + lines.substr(lines.find("\n  f ") + 1);
}

std::string JsonOf(const std::string& name, const py::object& value) {
  const py::object plain = py::module_::import("operator").attr("methodcaller")("tolist");
  try {
    return py::module_::import("json")
        .attr("dumps")(value, py::arg("default") = plain, py::arg("allow_nan") = false)
        .cast<std::string>();
  } catch (py::error_already_set& error) {
    // AttributeError: what is neither JSON nor numpy's; TypeError: a key that is no text;
    // ValueError: NaN, or a dict within itself; RecursionError: one too deep.
    if (!error.matches(PyExc_AttributeError) && !error.matches(PyExc_TypeError) &&
        !error.matches(PyExc_ValueError) && !error.matches(PyExc_RecursionError)) {
      throw;
    }
    throw Error(name + ": must hold numbers, text, lists and dicts alone, and finite numbers (" +
                std::string(py::str(error.value())) + ")");
  }
}

void TakeCosts(py::dict* keywords, CostsOption* option) {
  const py::object costs = keywords->attr("pop")("costs", py::none());
  if (costs.is_none()) return;
  if (py::isinstance<CostModel>(costs)) {
    option->read = costs.cast<CostModel>();
  } else if (py::isinstance<py::dict>(costs)) {
    option->text = JsonOf("costs", costs);
  } else if (py::isinstance<py::str>(costs) || py::hasattr(costs, "__fspath__")) {
    std::string value = ValueOf("costs", costs, false);
    // The text of a cost file has more than a line; no path has.
    const bool text = py::isinstance<py::str>(costs) && value.find('\n') != std::string::npos;
    (text ? option->text : option->file) = std::move(value);
  } else {
    RefuseType("costs", "a Costs, a dict, the text or the name of a file, or a profile", costs);
  }
}

CostsOption CostsOptionOf(const char* function, const py::object& costs, py::kwargs keywords) {
  for (const auto& [key, value] : keywords) {
    const auto name = key.cast<std::string>();
    if (Has(kTimes, name)) continue;
    throw py::type_error(std::string(function) + "() got an unexpected keyword argument '" + name +
                         "'");
  }
  CostsOption option;
  keywords["costs"] = costs;
  TakeCosts(&keywords, &option);
  ParseOptions(WordsOf(keywords), [&](CLI::App* app) { AddCostsOptions(app, &option, ""); });
  return option;
}

std::vector<std::string> PathsOf(const char* name, const py::object& paths) {
  const auto path_of = [&](const py::handle& value) {
    try {
      return value.cast<Path>().string();
    } catch (const py::cast_error&) {
      RefuseType(name, "a path that can be written, or a list of them", value);
    }
  };
  if (py::isinstance<py::str>(paths) || py::hasattr(paths, "__fspath__")) return {path_of(paths)};
  if (!py::isinstance<py::iterable>(paths) || py::isinstance<py::dict>(paths)) {
    RefuseType(name, "a path or a list of them", paths);
  }
  std::vector<std::string> files;
  for (const py::handle path : paths) files.push_back(path_of(path));
  if (files.empty()) throw Error(std::string(name) + ": name at least one file");
  return files;
}

void Warn(const std::vector<std::string>& assumed, int depth) {
  for (const std::string& what : assumed) {
    const std::string text = WithKeywords(what);
    if (PyErr_WarnEx(PyExc_UserWarning, text.c_str(), depth) != 0) throw py::error_already_set();
  }
}

}  // namespace contraflow::python
