#include "schedules/compare.h"

#include <pybind11/stl.h>

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

/// Whether they are of the same rows and plans.
bool Same(const ComparisonObject& a, const ComparisonObject& b) {
  return Rows(a).equal(Rows(b)) && Plans(a).equal(Plans(b));
}

/// For notebooks.
std::string TableHtml(const ComparisonObject& self) {
  const py::object escape = py::module_::import("html").attr("escape");
  const auto cell = [&](const std::string& text, const char* tag, bool right) {
    return std::string("<") + tag + (right ? " style=\"text-align: right\"" : "") + ">" +
           escape(text).cast<std::string>() + "</" + tag + ">";
  };
  const Table table = ComparisonTable(self.point.request, self.point.rows);
  std::string html = "<table><tr>";
  for (const std::string& heading : table.columns) {
    const bool right = heading.starts_with(">");
    html += cell(heading.substr(right ? 1 : 0), "th", right);
  }
  for (const std::vector<std::string>& row : table.rows) {
    html += "</tr>\n<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      html += cell(row[i], "td", table.columns[i].starts_with(">"));
    }
  }
  const std::string advice = WithKeywords(Advise(self.point.rows).text);
  return html + "</tr></table>\n<p>" + escape(advice).cast<std::string>() + "</p>";
}

}  // namespace

void BindCompare(py::module_& module) {
  using Self = std::shared_ptr<ComparisonObject>;
  py::class_<ComparisonObject, Self>(
      module, "Comparison", "All schedules side by side for one model, one memory, one size.")
      .def_property_readonly("rows", &Rows,
                             "A dict for each schedule, as `contraflow compare --json` has it.")
      .def_property_readonly("plans", &Plans, "The plans of those that are not rejected, by name.")
      .def_property_readonly("best", &Best, "The plan of the schedule to take; None: none fits.")
      .def_property_readonly(
          "advice",
          [](const ComparisonObject& self) { return WithKeywords(Advise(self.point.rows).text); },
          "Which schedule to take, and why.")
      .def("to_csv",
           [](const ComparisonObject& self) {
             return ComparisonCsvHeader() + ComparisonCsv(self.point.request, self.point.rows);
           })
      .def("__eq__", &Same)
      .def("__eq__", [](const ComparisonObject&, const py::object&) { return false; })
      .def("__copy__", [](const Self& self) { return self; })
      .def("__deepcopy__", [](const Self& self, const py::dict&) { return self; })
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
  module.def("compare", &Compared);
}

}  // namespace contraflow::python
