#include "tools/interop/interop.h"

#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "compiler/files/file.h"
#include "compiler/files/trace.h"
#include "compiler/lower/lower.h"
#include "compiler/plan/error.h"
#include "tools/pictures/page.h"
#include "tools/pictures/picture.h"
#include "tools/python/bindings.h"
#include "tools/report/promise.h"
#include "tools/report/report.h"

namespace contraflow::python {
namespace {

using Self = std::shared_ptr<PlanObject>;

Self FromTorchCsv(const Path& path, const std::string& level, const py::object& costs,
                  bool remake_comm, py::kwargs keywords) {
  const CostsOption option = CostsOptionOf("from_torch_csv", costs, std::move(keywords));
  const Level target = ParseLevel(level);
  auto [plan,
        assumed] = UntilInterrupted([path, option, target, remake_comm](const std::atomic<bool>&) {
    std::vector<std::string> said;
    CostModel model = ResolveCosts(option, UnitCosts(), &said);
    TorchCsvNotes notes;
    Plan order = ReadTorchCsv(ReadFile(path.string(), kMaxCsvBytes), path.string(), &notes);
    said.insert(said.end(), notes.notes.begin(), notes.notes.end());
    if (notes.forwards_alone) model = CostsOfForwards(std::move(model), path.string());
    RequireLossesInTurn(order, path.string());
    if (order.level == Level::kComm && target == Level::kComm && !remake_comm) {
      // Kept as it is, for verify() to judge.
      return std::pair(std::make_shared<PlanObject>(WithPromise(std::move(order), model)), said);
    }
    if (order.level == Level::kComm) order = WithoutMessages(std::move(order));
    RequireSound(order, path.string());
    order = Lower(std::move(order), model, {.target = target, .overlap = OverlapOf(option, model)});
    return std::pair(std::make_shared<PlanObject>(std::move(order)), said);
  });
  Warn(assumed, 1);
  return plan;
}

std::optional<std::string> ToTorchCsv(const Self& self, const std::optional<Path>& path,
                                      const std::string& form,
                                      const std::optional<std::string>& torch) {
  if (form != "compute" && form != "compute_comms") {
    throw Error("form: must be compute or compute_comms, is \"" + form.substr(0, 64) + "\"");
  }
  TorchCsvOptions options = {.messages = form == "compute_comms"};
  if (torch) options.version = ParseTorchVersion(*torch);
  std::optional<std::string> text =
      UntilInterrupted([self, path, options](const std::atomic<bool>&) {
        self->Verify();
        return Written(WriteTorchCsv(self->plan, options), path);
      });
  Warn(TorchNotes(self->plan), 1);
  return text;
}

using Layers = std::optional<std::variant<int64_t, std::string>>;

std::optional<std::string> TextOf(const Layers& layers) {
  if (!layers) return std::nullopt;
  const auto* const count = std::get_if<int64_t>(&*layers);
  return count ? std::to_string(*count) : std::get<std::string>(*layers);
}

void ToTorchtitan(const PlanObject& self, const Path& path, const Layers& layers,
                  const std::string& form) {
  if (!IsTorchtitanForm(form)) {
    throw Error("form: must be python, flags or toml, is \"" + form.substr(0, 64) + "\"");
  }
  const std::string flaw = FlawOfTorchtitanFile(path.string(), form);
  if (!flaw.empty()) throw Error("path: " + flaw);
  {
    const py::gil_scoped_release others;
    self.Verify();
    const std::string csv = CsvBeside(path.string()), schedule = WriteTorchCsv(self.plan);
    const std::string values = WriteTorchtitan(self.plan, csv, TextOf(layers), form);
    WriteFile(csv, schedule);
    WriteFile(path.string(), values);
  }
  Warn(TorchNotes(self.plan), 1);
}

Picture PictureOf(const PlanObject& self, int rank) {
  const Report& report = self.report();
  return MakePicture(self.plan, CostsForPlan({}, self.plan), report.simulation, {.rank = rank});
}

/// For notebooks: the drawing, as an image so that its styles stay its own.
std::string PictureHtml(const PlanObject& self) {
  constexpr int64_t kMostBoxes = 5000;
  const std::string title = "<div>" + DescribePlan(self.plan) + "</div>";
  std::string svg;
  {
    const py::gil_scoped_release others;
    try {
      if (InstructionCount(self.plan) > kMostBoxes) return title;
      svg = DrawSvg(PictureOf(self, -1));
    } catch (const Unsound& e) {
      return title + "<div>not sound: " + std::to_string(e.findings.size()) +
             " findings, see verify()</div>";
    }
  }
  const py::object encoded = py::module_::import("base64").attr("b64encode")(py::bytes(svg));
  return title + "<img src=\"data:image/svg+xml;base64," +
         encoded.attr("decode")().cast<std::string>() + "\"/>";
}

}  // namespace

std::optional<std::string> Written(std::string text, const std::optional<Path>& path) {
  if (!path) return text;
  WriteFile(path->string(), text);
  return std::nullopt;
}

void BindInterop(PlanClass* plan) {
  plan->def_static(
      "from_torch_csv", &FromTorchCsv, py::arg("path"), py::arg("level") = "comm",
      py::arg("costs") = py::none(), py::arg("remake_comm") = false,
      WithCostsKeywords("Reads a schedule written for PyTorch's pipelining, with its own messages "
                        "if it has any, which verify() proves and remake_comm drops; costs as "
                        "Costs(...) takes them.")
          .c_str());
  plan->def("to_torch_csv", &ToTorchCsv, py::arg("path") = py::none(), py::arg("form") = "compute",
            py::arg("torch") = py::none(),
            "The plan for PyTorch's pipelining: its compute order or, as form \"compute_comms\", "
            "with its messages, for the release that is to read it; the text where no path is "
            "given. Warns of what the file cannot say.");
  // An export of a sound plan: `text` makes it.
  const auto to = [plan](const char* name, auto text, const char* doc) {
    plan->def(
        name,
        [text](const Self& self, const std::optional<Path>& path) {
          return UntilInterrupted([text, self, path](const std::atomic<bool>&) {
            self->Verify();
            return Written(text(*self), path);
          });
        },
        py::arg("path") = py::none(), doc);
  };
  to(
      "to_chrome_trace",
      [](const PlanObject& self) {
        return WriteTrace(self.plan, self.report().simulation.timeline);
      },
      "The predicted timeline for Perfetto or chrome://tracing.");
  to(
      "to_dot", [](const PlanObject& self) { return WriteDot(self.plan); },
      "A graph for Graphviz.");
  to(
      "to_svg", [](const PlanObject& self) { return DrawSvg(PictureOf(self, -1)); },
      "The picture known from the papers.");
  to(
      "to_html",
      [](const PlanObject& self) {
        const CostModel costs = CostsForPlan({}, self.plan);
        const Report& report = self.report();
        const PagePlan page = PageOf(self.plan, costs, report, self.plan.schedule);
        return DrawPage({&page, 1}, {});
      },
      "A page with the picture and the figures.");
  plan->def(
          "to_megatron_layout",
          [](const PlanObject& self, const Layers& layers) {
            self.Verify();
            return WriteMegatronLayout(self.plan, TextOf(layers));
          },
          py::arg("layers") = py::none(), py::call_guard<py::gil_scoped_release>(),
          "The arguments with which Megatron-LM runs the plan, one a line.")
      .def("to_torchtitan", &ToTorchtitan, py::arg("path"), py::arg("layers") = py::none(),
           py::arg("form") = "python",
           "Writes the values of torchtitan's configuration that make it run the plan, as a Python "
           "function, as form \"flags\" or, for releases before February 2026, as form \"toml\"; "
           "and next to them, with the same name, the CSV that they name. Warns of what a CSV "
           "cannot say.")
      .def(
          "grid",
          [](const PlanObject& self, int width) {
            if (width < kMinGridWidth || width > kMaxGridWidth) {
              throw Error("width: must be in " + std::to_string(kMinGridWidth) + ".." +
                          std::to_string(kMaxGridWidth) + ", is " + std::to_string(width));
            }
            return DrawGrid(PictureOf(self, -1), {.width = width});
          },
          py::arg("width") = GridStyle{}.width, py::call_guard<py::gil_scoped_release>(),
          "The picture known from the papers as text.")
      .def("_repr_html_", &PictureHtml);
}

}  // namespace contraflow::python
