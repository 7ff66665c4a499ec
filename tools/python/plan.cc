#include "compiler/plan/plan.h"

#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "compiler/files/plan_io.h"
#include "tools/cli/spec_options.h"
#include "tools/interop/stage_layers.h"
#include "tools/python/bindings.h"
#include "tools/report/report.h"

namespace contraflow::python {

py::tuple PlanObject::Programs() {
  if (programs_) return programs_;
  py::tuple programs(plan.programs.size());
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    const Program& program = plan.programs[rank];
    py::tuple made(program.size());
    for (size_t i = 0; i < program.size(); ++i) made[i] = py::cast(program[i]);
    programs[rank] = std::move(made);
  }
  programs_ = programs;
  return programs;
}

namespace {

/// Throws Unsound where there are findings.
void RequireNone(const Plan& plan, std::vector<Finding> findings) {
  if (findings.empty()) return;
  constexpr size_t kShown = 3;
  std::string text = "the plan is not sound";
  for (size_t i = 0; i < std::min(kShown, findings.size()); ++i) {
    text += (i == 0 ? ": " : "; ") + findings[i].check + ": " + ToString(findings[i], plan);
  }
  if (findings.size() > kShown) {
    text += "; and " + std::to_string(findings.size() - kShown) + " more";
  }
  throw Unsound(std::move(findings), text);
}

py::tuple LayoutOf(const PlanObject& self,
                   const std::optional<std::variant<int, std::string>>& layers) {
  std::optional<std::string> text;
  if (layers) {
    const int* const count = std::get_if<int>(&*layers);
    text = count != nullptr ? std::to_string(*count) : std::get<std::string>(*layers);
  }
  return py::tuple(py::cast(LayersOfStages(self.plan, text, UnknownLayers::kRefuse)));
}

}  // namespace

PlanObject::~PlanObject() {
  if (!programs_) return;
  const py::gil_scoped_acquire mine;  // an interrupted call may hold it last
  programs_ = py::object();
}

void PlanObject::Verify() const {
  const std::lock_guard lock(mutex_);
  if (sound_) return;
  RequireNone(plan, contraflow::Verify(plan));
  sound_ = true;
}

void PlanObject::Verify(Semantics semantics) const {
  RequireNone(plan, contraflow::Verify(plan, semantics));
}

const Report& PlanObject::report() const {
  Verify();
  const std::lock_guard lock(mutex_);
  std::vector<std::string> said;  // when the plan was made
  if (!report_) report_ = MakeReport(plan, CostsForPlan({}, plan, &said));
  return *report_;
}

bool PlanObject::has_report() const {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock && report_;
}

namespace {

/// The report of a sound plan in its own costs. With the GIL.
const Report& ReportOf(const std::shared_ptr<PlanObject>& self) {
  if (!self->has_report()) {
    UntilInterrupted([self](const std::atomic<bool>&) { self->report(); });
  }
  return self->report();
}

/// A field that is -1 where the operation does not have it.
template <typename Field>
auto Optional(Field Instruction::*field) {
  return [field](const Instruction& instruction) {
    const Field value = instruction.*field;
    return value < 0 ? std::optional<int>() : std::optional<int>(value);
  };
}

void BindInstruction(py::module_& module) {
  NewClass<Instruction>(module, "Instruction", "Instruction() makes one",
                        "One instruction of one rank. str() gives it as in plan files; what the "
                        "operation does not have is None.")
      .def(py::init(&ParseInstruction), py::arg("text"),
           "From the text in plan files, such as \"SEND_F s3 m7 to=4\".")
      .def_property_readonly(
          "op", [](const Instruction& i) { return Name(i.op); },
          "\"F\" \"B\" \"W\" \"BW\" \"FB\" \"SEND_F\" ...")
      .def_property_readonly("stage", Optional(&Instruction::stage),
                             "Of an FB the stage of its forward.")
      .def_property_readonly("microbatch", Optional(&Instruction::microbatch),
                             "Of an FB the micro-batch of its forward.")
      .def_property_readonly("back_stage", Optional(&Instruction::back_stage),
                             "FB only: the stage of its backward.")
      .def_property_readonly("back_microbatch", Optional(&Instruction::back_microbatch),
                             "FB only: the micro-batch of its backward.")
      .def_property_readonly("peer", Optional(&Instruction::peer),
                             "The rank a SEND goes to or a RECV comes from.")
      .def_property_readonly("group", Optional(&Instruction::group),
                             "Neighbouring messages of one group are posted together.")
      .def_property_readonly("layer", Optional(&Instruction::layer), "Of a component.")
      .def_property_readonly("slot", Optional(&Instruction::slot),
                             "Of a message at level buffer: what it moves.")
      .def_property_readonly(
          "lane",
          [](const Instruction& i) {
            return i.lane == Lane::kNone ? std::optional<std::string_view>() : Name(i.lane);
          },
          "\"compute\" \"alltoall\" \"send\" ..., from level component on.")
      .def_property_readonly(
          "after",
          [](const Instruction& i) {
            py::tuple after(i.after_count);
            for (size_t at = 0; at < i.after_count; ++at) after[at] = i.after[at];
            return after;
          },
          "Indices of the instructions of the same rank that it waits for.")
      .def("__str__", [](const Instruction& i) { return ToString(i); })
      .def("__repr__", [](const Instruction& i) { return "<Instruction " + ToString(i) + ">"; })
      .def("__eq__", [](const Instruction& i, const Instruction& other) { return i == other; })
      .def("__eq__", [](const Instruction&, const py::object&) { return false; })
      .def("__hash__", [](const Instruction& i) { return py::hash(py::str(ToString(i))); })
      .def(py::pickle([](const Instruction& i) { return ToString(i); },
                      [](const std::string& text) { return ParseInstruction(text); }));
}

/// Throws Error unless the argument of that name counts below `end`.
void CheckIndex(const char* name, int value, int end) {
  if (value >= 0 && value < end) return;
  throw Error(std::string(name) + ": must be in 0.." + std::to_string(end - 1) + ", is " +
              std::to_string(value));
}

int RankOf(const PlanObject& self, int stage, std::optional<int> microbatch) {
  const Plan& plan = self.plan;
  CheckIndex("stage", stage, plan.stages);
  if (microbatch) CheckIndex("microbatch", *microbatch, plan.microbatches);
  const auto taken = std::ranges::find_if(plan.routes, [&](const Route& route) {
    return !microbatch || std::ranges::binary_search(route.microbatches, *microbatch);
  });
  if (taken == plan.routes.end()) {
    throw Error("microbatch: no route takes " + std::to_string(*microbatch) +
                ", so the plan is not sound; see verify()");
  }
  return taken->ranks[static_cast<size_t>(stage)];
}

py::tuple StagesOf(const PlanObject& self, int rank) {
  CheckIndex("rank", rank, self.plan.ranks);
  std::vector<int> stages;
  for (const Route& route : self.plan.routes) {
    for (size_t stage = 0; stage < route.ranks.size(); ++stage) {
      if (route.ranks[stage] == rank) stages.push_back(static_cast<int>(stage));
    }
  }
  std::sort(stages.begin(), stages.end());
  stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  return py::tuple(py::cast(stages));
}

}  // namespace

PlanClass BindPlan(py::module_& module) {
  BindInstruction(module);
  NewClass<Route>(module, "Route", "`routes` of a Plan are some",
                  "Where the stages live for the micro-batches that take this route.")
      .def_property_readonly(
          "ranks", [](const Route& r) { return py::tuple(py::cast(r.ranks)); },
          "ranks[s] owns stage s.")
      .def_property_readonly(
          "microbatches", [](const Route& r) { return py::tuple(py::cast(r.microbatches)); },
          "Those that take it, ascending.")
      .def(
          "__eq__", [](const Route& a, const Route& b) { return a == b; }, py::is_operator())
      .def("__hash__",
           [](const Route& r) {
             return py::hash(
                 py::make_tuple(py::tuple(py::cast(r.ranks)), py::tuple(py::cast(r.microbatches))));
           })
      .def(py::pickle(
          [](const Route& r) { return py::make_tuple(r.ranks, r.microbatches); },
          [](const py::tuple& state) {
            return Route{state[0].cast<std::vector<int>>(), state[1].cast<std::vector<int>>()};
          }))
      .def("__repr__", [](const Route& r) {
        return "<Route of " + std::to_string(r.ranks.size()) + " stages, " +
               std::to_string(r.microbatches.size()) + " micro-batches>";
      });

  const auto release = py::call_guard<py::gil_scoped_release>();
  PlanClass plan = NewClass<PlanObject, std::shared_ptr<PlanObject>>(
      module, "Plan", "compile() or Plan.load() makes one",
      "A compiled schedule: the program of every rank. It never changes; times are in `unit`.");
  plan.def_static(
          "load",
          [](const Path& path) {
            return std::make_shared<PlanObject>(ReadPlanFile(path.string()));
          },
          py::arg("path"), release, "Reads a plan file: JSON, CBOR or a folder.")
      .def_static(
          "from_json",
          [](const std::string& text) {
            return std::make_shared<PlanObject>(ReadPlan(text, "plan"));
          },
          py::arg("text"), release, "Reads the text of a plan file.")
      .def(
          "to_json", [](const PlanObject& self) { return WritePlan(self.plan); }, release,
          "The text of a plan file; same plan, same text.")
      .def(
          "save",
          [](const PlanObject& self, const Path& path) { WritePlanFile(path.string(), self.plan); },
          py::arg("path"), release,
          "Writes a plan file: binary if the path ends in \".cbor\", a folder with a file for "
          "each rank if it ends in \"/\".")
      .def(
          "verify",
          [](const std::shared_ptr<PlanObject>& self, const std::optional<std::string>& semantics) {
            std::optional<Semantics> asked;
            if (semantics) asked = ParseSemantics(*semantics);
            UntilInterrupted([self, asked](const std::atomic<bool>&) {
              asked ? self->Verify(*asked) : self->Verify();
            });
          },
          py::arg("semantics") = py::none(),
          "Proves the plan complete, in order and free of deadlock, or raises Unsound: where each "
          "rank has one in-order queue (\"rank\"), each pair of ranks (\"pair\") or directed edge "
          "(\"edge\") has its own, or with unlimited buffering (\"buffered\"); by default as the "
          "plan's own `semantics`.");
  const auto field = [&plan](const char* name, auto of, const char* doc) {
    plan.def_property_readonly(
        name, [of](const PlanObject& self) { return of(self.plan); }, doc);
  };
  field(
      "schedule", [](const Plan& p) { return p.schedule; }, "Name of what generated it.");
  field(
      "level", [](const Plan& p) { return Name(p.level); },
      "How far it is lowered: \"compute\", \"comm\", \"component\" or \"buffer\".");
  field(
      "semantics", [](const Plan& p) { return Name(p.semantics); },
      "The queues that its messages need: \"rank\", which does anywhere, \"pair\", \"edge\" or "
      "\"buffered\".");
  field(
      "ranks", [](const Plan& p) { return p.ranks; }, "Number of ranks.");
  field(
      "stages", [](const Plan& p) { return p.stages; }, "Number of stages.");
  field(
      "microbatches", [](const Plan& p) { return p.microbatches; },
      "Number of micro-batches of a step.");
  field(
      "data_parallel", [](const Plan& p) { return p.data_parallel; },
      "Replicas of the whole pipeline.");
  field(
      "expert_parallel", [](const Plan& p) { return p.expert_parallel; }, "Devices of one rank.");
  field(
      "layers", [](const Plan& p) { return p.layers; },
      "Layers of each stage where the programs have components, else 0; of unlike stages the "
      "most.");
  field(
      "stage_layers",
      [](const Plan& p) {
        std::vector<std::string> stages;
        for (const StageLayers& layers : p.stage_layers) stages.push_back(ToString(layers));
        return stages;
      },
      "Of each stage its layers, a letter each: m MoE, d dense, p plain; empty where all are "
      "alike.");
  field(
      "partition",
      [](const Plan& p) { return py::tuple(py::cast(p.costs ? p.costs->partition : Partition{})); },
      "Layers of each stage, embedding and head counted as well; empty where the costs have no "
      "layers.");
  field(
      "costs", [](const Plan& p) { return p.costs; },
      "The costs that it was compiled with. Where these have layers, they are those of its stages. "
      "None: it has no costs.");
  field(
      "routes", [](const Plan& p) { return p.routes; },
      "Every micro-batch takes exactly one; DualPipe has two.");
  plan.def_property_readonly("programs", &PlanObject::Programs,
                             "A tuple for each rank with its instructions in issue order.")
      .def("stages_of", &StagesOf, py::arg("rank"), "Stages that live on a rank, ascending.")
      .def("rank_of", &RankOf, py::arg("stage"), py::arg("microbatch") = py::none(),
           "The rank that a stage lives on for a micro-batch. Without one that of the first of "
           "`routes`; on another the stage lives elsewhere.")
      .def("layout", &LayoutOf, py::arg("layers") = py::none(),
           "Of each stage its layers, a letter each: E embedding, t transformer layer, m layer of "
           "multi-token prediction, L head. Where the costs do not know them, `layers` says how "
           "many the model or each stage has (32, or \"6,5x6,4\"), or is a layout such as "
           "\"Et*3|t*4|t*3L\".");
  const auto figure = [&plan](const char* name, auto of, const char* doc) {
    plan.def_property_readonly(
        name, [of](const std::shared_ptr<PlanObject>& self) { return of(ReportOf(self)); }, doc);
  };
  BindFigures(figure);
  plan.def("__eq__",
           [](const PlanObject& self, const PlanObject& other) { return self.plan == other.plan; })
      .def("__eq__", [](const PlanObject&, const py::object&) { return false; })
      .def("__str__", [](const PlanObject& self) { return DescribePlan(self.plan); })
      .def("__repr__",
           [](const PlanObject& self) { return "<Plan " + DescribePlan(self.plan) + ">"; });
  plan.attr("__hash__") = py::none();
  using Self = std::shared_ptr<PlanObject>;  // it never changes, so a copy is itself
  plan.def("__copy__", [](const Self& self) { return self; })
      .def("__deepcopy__", [](const Self& self, const py::dict&) { return self; });
  plan.def(py::pickle([](const PlanObject& self) { return py::bytes(WritePlanBinary(self.plan)); },
                      [](const py::bytes& bytes) {
                        return std::make_shared<PlanObject>(
                            ReadPlan(std::string_view(bytes), "pickle"));
                      }));
  return plan;
}

}  // namespace contraflow::python
