#include "schedules/compare.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/python/bindings.h"
#include "tools/report/comparison.h"

namespace contraflow::python {
namespace {

/// All schedules side by side, with the plans of those that are not rejected.
struct ComparisonObject {
  Point point;
  bool costs_given;
  std::vector<std::shared_ptr<PlanObject>> plans;  ///< of the rows; null where there is none
};

std::shared_ptr<ComparisonObject> Compared(py::kwargs keywords) {
  CompareFlags flags;
  TakeCosts(&keywords, &flags.costs);
  ParseOptions(WordsOf(keywords), [&](CLI::App* app) { AddCompareOptions(app, &flags); });
  auto [compared, assumed] = UntilInterrupted([flags](const std::atomic<bool>& stop) {
    std::vector<std::string> said;
    std::vector<Point> points = MakePoints(flags, &said);
    if (points.size() > 1) {
      throw UsageError("`microbatches`: one number of them and one `memory_limit` at a time");
    }
    auto made = std::make_shared<ComparisonObject>(
        ComparisonObject{std::move(points.front()), flags.costs.given(), {}});
    CompareRequest& request = made->point.request;
    request.keep_plans = request.single_too = true;
    request.control.stop = &stop;
    made->point.rows = Compare(request);
    if (!flags.sort.empty()) SortRows(flags.sort, &made->point.rows);
    request.control.stop = nullptr;
    const std::string why_not = RejectedByAll(request, made->point.rows);
    if (!why_not.empty()) throw Error(why_not);
    for (CompareRow& row : made->point.rows) {
      made->plans.push_back(row.plan ? std::make_shared<PlanObject>(std::move(*row.plan))
                                     : nullptr);
      row.plan.reset();
    }
    return std::pair(std::move(made), std::move(said));
  });
  Warn(assumed, 2);
  return compared;
}

py::object Rows(const ComparisonObject& self) {
  const Json document = ComparisonToJson(self.point.request, self.point.rows);
  return py::module_::import("json").attr("loads")(document.dump())["rows"];
}

py::dict Plans(const ComparisonObject& self) {
  py::dict plans;
  for (size_t i = 0; i < self.plans.size(); ++i) {
    if (self.plans[i]) plans[NameOf(self.point.rows[i]).c_str()] = self.plans[i];
  }
  return plans;
}

std::shared_ptr<PlanObject> Best(const ComparisonObject& self) {
  const CompareRow* const row = Advise(self.point.rows).row;
  return row == nullptr ? nullptr : self.plans[static_cast<size_t>(row - self.point.rows.data())];
}

std::string CsvOf(const ComparisonObject& self) {
  return ComparisonCsvHeader() + ComparisonCsv(self.point.request, self.point.rows);
}

/// Whether they are of the same rows and plans.
bool Same(const ComparisonObject& a, const ComparisonObject& b) {
  return Rows(a).equal(Rows(b)) && Plans(a).equal(Plans(b));
}

/// A copy of what never changes.
py::object Itself(const py::object& self) {
  self.cast<const ComparisonObject&>();  // throws where it has no value
  return self;
}

/// The lines of to_csv as columns.
py::dict Columns(const ComparisonObject& self) {
  constexpr std::array kTexts = {"memory_limit", "schedule", "placement", "unit", "rejected"};
  constexpr std::array kFlags = {"advised", "fits"};
  const auto has = [](const auto& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  const std::string text = CsvOf(self);
  const py::list lines(
      py::module_::import("csv").attr("reader")(py::module_::import("io").attr("StringIO")(text)));
  const py::object number = py::module_::import("json").attr("loads");
  py::dict columns;
  for (size_t at = 0; at < py::len(lines[0]); ++at) {
    const auto name = lines[0][py::int_(at)].cast<std::string>();
    py::list column;
    for (size_t row = 1; row < lines.size(); ++row) {
      const py::object cell = lines[row][py::int_(at)];
      if (py::len(cell) == 0) {
        column.append(py::none());
      } else if (has(kTexts, name)) {
        column.append(cell);
      } else {
        const py::object value = number(cell);
        column.append(has(kFlags, name) ? py::bool_(value) : value);
      }
    }
    columns[name.c_str()] = column;
  }
  return columns;
}

/// For notebooks.
std::string TableHtml(const ComparisonObject& self) {
  return FormatHtml(ComparisonTable(self.point.request, self.point.rows)) + "\n<p>" +
         EscapeMarkup(WithKeywords(Advise(self.point.rows).text)) + "</p>";
}

}  // namespace

void BindCompare(py::module_& module) {
  NewClass<ComparisonObject, std::shared_ptr<ComparisonObject>>(
      module, "Comparison", "compare() makes one",
      "All schedules side by side for one model, one memory, one size.")
      .def_property_readonly("rows", &Rows,
                             "A dict for each schedule, as `contraflow compare --json` has it.")
      .def_property_readonly("plans", &Plans, "The plans of those that are not rejected, by name.")
      .def_property_readonly("best", &Best, "The plan of the schedule to take; None: none fits.")
      .def_property_readonly(
          "advice",
          [](const ComparisonObject& self) { return WithKeywords(Advise(self.point.rows).text); },
          "Which schedule to take, and why.")
      .def("to_csv", &CsvOf, "The same figures as text, a line for each schedule.")
      .def_property_readonly("columns", &Columns,
                             "A list for each column of to_csv, for pandas.DataFrame(columns); "
                             "None is none.")
      .def("__eq__", &Same)
      .def("__eq__", [](const ComparisonObject&, const py::object&) { return false; })
      .def("__copy__", &Itself)
      .def("__deepcopy__", [](const py::object& self, const py::dict&) { return Itself(self); })
      .def("__reduce_ex__",
           [](const ComparisonObject&, int) -> py::object {
             throw py::type_error("a Comparison cannot be pickled; its rows and plans can");
           })
      .def("_repr_html_", &TableHtml)
      .def("__str__",
           [](const ComparisonObject& self) {
             return ComparisonText(self.point.request, self.point.rows, self.costs_given);
           })
      .def("__repr__",
           [](const ComparisonObject& self) {
             return "<Comparison of " + std::to_string(self.plans.size()) +
                    " schedules: " + WithKeywords(Advise(self.point.rows).text) + ">";
           })
      .attr("__hash__") = py::none();
  DefCommand(module, "compare", &Compared, &AddCompareOptions);
}

}  // namespace contraflow::python
