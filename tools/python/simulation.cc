#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/files/trace.h"
#include "compiler/lower/lower.h"
#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "tools/python/bindings.h"
#include "tools/report/explanation.h"
#include "tools/report/report.h"

namespace contraflow::python {
namespace {

/// A plan's predicted run in certain costs.
struct SimulationObject {
  std::shared_ptr<PlanObject> plan;
  CostModel costs;
  Report report;

  const Simulation& run() const { return report.simulation; }
};

using Self = std::shared_ptr<PlanObject>;

/// A run in these costs; without the GIL.
SimulationObject Run(const Self& plan, CostModel costs) {
  plan->Verify();
  Report report = MakeReport(plan->plan, costs);
  return {plan, std::move(costs), std::move(report)};
}

/// Has messages wait in these queues, in which the plan is proven.
void UseQueues(const Self& plan, const std::optional<std::string>& semantics, CostModel* costs) {
  if (!semantics) return;
  costs->comm.queues = ParseSemantics(*semantics);
  if (plan->plan.level == Level::kCompute) {
    throw Error("semantics: the plan has no messages; compile it with level=\"comm\"");
  }
  if (plan->plan.level > Level::kComm) {
    throw Error(
        "semantics: must be left out for a plan with components, whose messages wait on edges");
  }
  plan->Verify(costs->comm.queues);
}

SimulationObject Simulated(const Self& self, const py::object& costs,
                           const std::optional<std::string>& semantics, py::kwargs keywords) {
  const CostsOption option = CostsOptionOf("simulate", costs, std::move(keywords));
  auto [made, assumed] = UntilInterrupted([self, option, semantics](const std::atomic<bool>&) {
    std::vector<std::string> said;
    CostModel model = CostsForPlan(option, self->plan, &said);
    UseQueues(self, semantics, &model);
    return std::pair(Run(self, std::move(model)), said);
  });
  Warn(assumed, 1);
  return std::move(made);
}

py::object Explained(const Self& self, const py::object& costs, std::optional<int> rank,
                     const std::optional<std::string>& semantics, py::kwargs keywords) {
  const CostsOption option = CostsOptionOf("explain", costs, std::move(keywords));
  if (rank && (*rank < 0 || *rank >= self->plan.ranks)) {
    throw Error("rank: must be in 0.." + std::to_string(self->plan.ranks - 1) + ", is " +
                std::to_string(*rank));
  }
  const auto [text, assumed] = UntilInterrupted([=](const std::atomic<bool>&) {
    self->Verify();
    std::vector<std::string> said;
    CostModel model = CostsForPlan(option, self->plan, &said);
    UseQueues(self, semantics, &model);
    // Ranks wait for messages; that changes no time.
    const bool lowered = self->plan.level != Level::kCompute;
    const Plan plan = lowered ? self->plan : Lower(self->plan, model, {.target = Level::kComm});
    return std::pair(
        FormatJson("explain", ExplanationToJson(Explain(plan, model), rank.value_or(-1))), said);
  });
  Warn(assumed, 1);
  return py::module_::import("json").attr("loads")(text);
}

/// An array with strides of its own: pybind11 2.10 reads the size of an entry of NumPy 2 wrong.
template <typename Number>
py::array_t<Number> NewArray(py::ssize_t count) {
  return py::array_t<Number>({count}, {static_cast<py::ssize_t>(sizeof(Number))});
}

/// Throws ImportError where arrays are not what was written into them. Without NumPy all is well.
void CheckArrays() {
  if (py::module_::import("importlib.util").attr("find_spec")("numpy").is_none()) return;
  py::array_t<int16_t> array = NewArray<int16_t>(2);
  array.mutable_at(0) = 1;
  array.mutable_at(1) = 2;
  if (array.attr("sum")().cast<int>() == 3) return;
  const auto version = py::module_::import("numpy").attr("__version__").cast<std::string>();
  throw py::import_error(
      "contraflow was built with pybind11 " + std::to_string(PYBIND11_VERSION_MAJOR) + "." +
      std::to_string(PYBIND11_VERSION_MINOR) + ", which does not know the arrays of NumPy " +
      version + ": build it with a newer pybind11, or install an older NumPy");
}

/// A figure of every rank.
template <typename Number, typename Of>
py::array_t<Number> OfRanks(const SimulationObject& self, Of of) {
  auto array = NewArray<Number>(static_cast<py::ssize_t>(self.run().ranks.size()));
  Number* at = array.mutable_data();
  for (const RankFigures& rank : self.run().ranks) *at++ = of(rank);
  return array;
}

auto TimesOfRanks(Time RankFigures::*field) {
  return [field](const SimulationObject& self) {
    return OfRanks<double>(
        self, [&](const RankFigures& rank) { return FromTicks(rank.*field, self.report.unit); });
  };
}

/// Names as an array of text, one for each entry.
py::object Named(const std::vector<std::string_view>& names, const py::array_t<int8_t>& entries) {
  const py::module_ numpy = py::module_::import("numpy");
  return numpy.attr("array")(names).attr("take")(entries);
}

/// A column for each field of the instructions, in the order of the programs.
py::dict TimelineOf(const SimulationObject& self) {
  const Plan& plan = self.plan->plan;
  const auto count = static_cast<py::ssize_t>(InstructionCount(plan));
  auto start = NewArray<double>(count), end = NewArray<double>(count);
  auto rank = NewArray<int32_t>(count), index = NewArray<int32_t>(count);
  auto stage = NewArray<int32_t>(count), microbatch = NewArray<int32_t>(count);
  auto op = NewArray<int8_t>(count), lane = NewArray<int8_t>(count);
  py::ssize_t at = 0;
  for (size_t r = 0; r < plan.programs.size(); ++r) {
    for (size_t i = 0; i < plan.programs[r].size(); ++i, ++at) {
      const Instruction& instruction = plan.programs[r][i];
      const Span& span = self.run().timeline.ranks[r][i];
      start.mutable_at(at) = FromTicks(span.start, self.report.unit);
      end.mutable_at(at) = FromTicks(span.end, self.report.unit);
      rank.mutable_at(at) = static_cast<int32_t>(r);
      index.mutable_at(at) = static_cast<int32_t>(i);
      stage.mutable_at(at) = instruction.stage;
      microbatch.mutable_at(at) = instruction.microbatch;
      op.mutable_at(at) = static_cast<int8_t>(instruction.op);
      lane.mutable_at(at) = static_cast<int8_t>(LaneOf(instruction.op));
    }
  }
  std::vector<std::string_view> ops, lanes;
  for (int i = 0; i < kOpCount; ++i) ops.push_back(Name(static_cast<Op>(i)));
  for (int i = 0; i <= static_cast<int>(kLastLane); ++i)
    lanes.push_back(Name(static_cast<Lane>(i)));
  py::dict columns;
  columns["rank"] = rank;
  columns["index"] = index;
  columns["op"] = Named(ops, op);
  columns["lane"] = Named(lanes, lane);
  columns["stage"] = stage;
  columns["microbatch"] = microbatch;
  columns["start"] = start;
  columns["end"] = end;
  return columns;
}

py::list CriticalPathOf(const SimulationObject& self) {
  py::list path;
  for (const InstructionRef& at : self.report.critical_path) {
    path.append(py::make_tuple(at.rank, at.index));
  }
  return path;
}

Table Ranks(const SimulationObject& self) {
  return RankTable(self.report, self.report.peak_bytes() > 0);
}

/// For notebooks; of many ranks the first and the last.
std::string TableHtml(const SimulationObject& self) {
  constexpr ptrdiff_t kMostRows = 64;
  Table ranks = Ranks(self);
  if (std::ssize(ranks.rows) > kMostRows) {
    const auto from = ranks.rows.begin() + kMostRows / 2;
    *ranks.rows.erase(from, ranks.rows.end() - kMostRows / 2 - 1) = {"..."};
  }
  const Unit unit = self.report.unit;
  const std::string line =
      DescribePlan(self.plan->plan) + ": makespan " + FormatWithUnit(self.run().makespan, unit) +
      ", " + IdleTitle(self.report.components) + " " + FormatPercent(self.run().bubble_ratio()) +
      ", lower bound " + FormatWithUnit(self.report.bound.value, unit);
  return "<p>" + EscapeMarkup(line) + "</p>\n" + FormatHtml(ranks);
}

py::object Document(const SimulationObject& self) {
  return py::module_::import("json").attr("loads")(
      FormatJson("simulate", ReportToJson(self.report)));
}

}  // namespace

void BindSimulation(py::module_& module, PlanClass* plan) {
  CheckArrays();
  const auto release = py::call_guard<py::gil_scoped_release>();
  auto simulation = NewClass<SimulationObject>(module, "Simulation", "simulate() makes one",
                                               "A plan's predicted run; times are in `unit`.");
  const auto figure = [&simulation](const char* name, auto of, const char* doc) {
    simulation.def_property_readonly(
        name, [of](const SimulationObject& self) { return of(self.report); }, doc);
  };
  BindFigures(figure);
  figure(
      "span", [](const Report& r) { return FromTicks(r.simulation.span, r.unit); },
      "Largest time of a rank from its first start to its last end.");
  const auto ranks = [&simulation](const char* name, auto of, const char* doc) {
    simulation.def_property_readonly(name, of, doc);
  };
  ranks("busy", TimesOfRanks(&RankFigures::busy), "Of each rank: time in which it computes.");
  ranks("bubble", TimesOfRanks(&RankFigures::bubble), "Of each rank: makespan - busy.");
  ranks("all_to_all", TimesOfRanks(&RankFigures::all_to_all),
        "Of each rank: busy time of the all-to-all lane; 0 where there are no components.");
  ranks("exposed", TimesOfRanks(&RankFigures::exposed),
        "Of each rank: time of all-to-alls while it computes nothing.");
  ranks(
      "peak_activations",
      [](const SimulationObject& self) {
        return OfRanks<int64_t>(self,
                                [](const RankFigures& rank) { return rank.peak_activations; });
      },
      "Of each rank: most chunks held at a time.");
  ranks(
      "peak_bytes",
      [](const SimulationObject& self) {
        return OfRanks<int64_t>(self, [](const RankFigures& rank) { return rank.peak_bytes; });
      },
      "Of each rank: most bytes of activations; 0 where the costs have none.");
  simulation
      .def_property_readonly("timeline", &TimelineOf,
                             "Every instruction, as a dict of numpy arrays: rank, index, op, lane, "
                             "stage, microbatch, start, end. -1 is none.")
      .def_property_readonly("critical_path", &CriticalPathOf,
                             "A longest chain of instructions as pairs of rank and index.")
      .def("to_dict", &Document, "What `contraflow simulate --json` prints.")
      .def(
          "to_chrome_trace",
          [](const SimulationObject& self, const std::optional<Path>& path) {
            return Written(WriteTrace(self.plan->plan, self.run().timeline), path);
          },
          py::arg("path") = py::none(), release,
          "The timeline for Perfetto or chrome://tracing; the text where no path is given.")
      .def("__eq__",
           [](const SimulationObject& self, const SimulationObject& other) {
             return self.costs == other.costs && self.plan->plan == other.plan->plan;
           })
      .def("__eq__", [](const SimulationObject&, const py::object&) { return false; })
      .def("__copy__", [](const SimulationObject& self) { return self; })
      .def("__deepcopy__", [](const SimulationObject& self, const py::dict&) { return self; })
      .def(py::pickle(
          [](const SimulationObject& self) { return py::make_tuple(self.plan, self.costs); },
          [](const py::tuple& state) {
            return UntilInterrupted([of = state[0].cast<Self>(),
                                     costs = state[1].cast<CostModel>()](const std::atomic<bool>&) {
              return Run(of, costs);
            });
          }))
      .def("_repr_html_", &TableHtml)
      .def("__str__",
           [](const SimulationObject& self) {
             return FormatTable(Ranks(self)) + "\n" + SummaryTable(self.plan->plan, self.report);
           })
      .def("__repr__", [](const SimulationObject& self) {
        return "<Simulation of " + DescribePlan(self.plan->plan) + ": makespan " +
               FormatWithUnit(self.run().makespan, self.report.unit) + ">";
      });
  simulation.attr("__hash__") = py::none();
  plan->def(
      "explain", &Explained, py::arg("costs") = py::none(), py::arg("rank") = py::none(),
      py::arg("semantics") = py::none(),
      WithCostsKeywords("Why ranks are idle and which costs the makespan follows, as "
                        "`contraflow explain --json` has it; of a rank with each of its idle "
                        "times. Messages wait in the queues of `semantics`, as simulate() has it. "
                        "Costs as Costs(...) takes them.")
          .c_str());
  plan->def(
      "simulate", &Simulated, py::arg("costs") = py::none(), py::arg("semantics") = py::none(),
      WithCostsKeywords(
          "Predicts the run in the plan's own costs or in those given, as Costs(...) takes them. "
          "With `semantics` messages wait for those before them: in one queue a rank (\"rank\"), "
          "or "
          "one for each pair of ranks (\"pair\") or directed edge (\"edge\", the default).")
          .c_str());
}

}  // namespace contraflow::python
