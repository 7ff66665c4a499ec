#include "tools/contraflow-run/custom.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "compiler/files/file.h"
#include "compiler/files/trace.h"
#include "compiler/plan/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/core/bytes.h"
#include "runtime/launch/custom_run.h"
#include "runtime/stages/custom_check.h"
#include "tools/cli/exit.h"
#include "tools/contraflow-run/output.h"
#include "tools/contraflow-run/step_log.h"
#include "tools/contraflow-run/train.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

/// SHA-256 of all blocks of all stages; valid in process 0.
std::string WeightsOf(const Plan& plan, CustomTraining* training, Job* job) {
  const std::vector<std::vector<int>> holders = HoldersOfStage(plan);
  std::map<std::string, Digest> mine, all;
  std::vector<std::byte> room;
  for (const Device& device : training->devices()) {
    if (device.replica > 0 || device.member > 0) continue;
    CustomDevice& holder = training->At(device);
    for (const int s : holder.Held()) {
      if (holders[static_cast<size_t>(s)].front() != device.rank) continue;
      for (const contraflow_block& block : holder.At(s).Blocks()) {
        mine["stage " + std::to_string(s) + " " + block.name] =
            Sha256(training->Read(block.data, block.bytes, &room));
      }
    }
  }
  for (const std::string& bytes : job->Gather(ByteWriter().PutByName(mine).Take())) {
    all.merge(ByteReader(bytes, "the digests of weights are").TakeByName<Digest>());
  }
  return all.empty() ? "" : Hex(WeightsDigest(all));
}

std::string LineOf(int step, const StepResult& result) {
  char text[96];
  std::snprintf(text, sizeof text, "step %3d  loss %.4f  %.1f ms\n", step, result.loss,
                static_cast<double>(result.duration) * 1e-6);
  return text;
}

/// Report of one training on the way and at the end.
class CustomReport {
 public:
  CustomReport(const RunOptions& options, const Plan& plan)
      : options_(options), output_(STDOUT_FILENO) {
    if (!options.jsonl.empty()) file_.emplace(options.jsonl, 0);
    document_["schedule"] = plan.schedule;
    document_["ranks"] = plan.ranks;
    document_["stages"] = plan.stages;
    document_["microbatches"] = plan.microbatches;
    document_["data_parallel"] = plan.data_parallel;
    document_["device"] = options.device;
    document_["steps"] = Json::array();
    if (options.json) return;
    output_.Say(plan.schedule + ": " + std::to_string(plan.ranks) + " ranks, " +
                std::to_string(plan.stages) + " stages, " + std::to_string(plan.microbatches) +
                " micro-batches; stages of " + options.stages + "\n");
  }

  void Step(int step, const StepResult& result, bool last) {
    Json row = Json::object();
    row["step"] = step;
    row["loss"] = result.loss;
    row["ms"] = static_cast<double>(result.duration) * 1e-6;
    if (file_) file_->Add(row);
    if (options_.json) return document_["steps"].push_back(std::move(row));
    if (step == 1 || last || step % options_.log_every == 0) output_.Say(LineOf(step, result));
  }

  /// False if the system refused it.
  bool End(int step, const std::string& weights, int64_t compared, const std::string& difference,
           const std::function<void()>& waits) {
    if (!options_.json) {
      std::string text;
      if (!weights.empty()) {
        text += "weights after step " + std::to_string(step) + ": SHA-256 " + weights + "\n";
      }
      if (options_.check && difference.empty()) {
        text += "check: " + FormatCount(compared) +
                (weights.empty() ? " bytes of losses and gradients"
                                 : " bytes of losses, gradients and weights") +
                " equal those without a pipeline\n";
      }
      return output_.Finish(text, waits);
    }
    document_["weights_sha256"] = weights;
    if (options_.check) {
      document_["check"] = {{"ok", difference.empty()}, {"compared", compared}};
      if (!difference.empty()) document_["check"]["difference"] = difference;
    }
    return output_.Finish(FormatJson("run", document_), waits);
  }

 private:
  const RunOptions& options_;
  Output output_;
  std::optional<StepFile> file_;
  Json document_ = Json::object();
};

}  // namespace

MakeCustomTraining OnHost(const RunOptions& options) {
  return [&options](const CustomStages& stages,
                    const HostProcess* process) -> std::unique_ptr<CustomTraining> {
    if (process == nullptr) {
      return std::make_unique<CustomRun>(
          stages, ThreadNetwork::Options{options.strict, Milliseconds(options.timeout), EndOfHang});
    }
    return std::make_unique<CustomRun>(stages, *process);
  };
}

int TrainCustom(const RunOptions& options, const RunInput& input, const MakeCustomTraining& make,
                bool on_gpu, const HostProcess* process, Job& job) {
  const Plan& plan = input.plan;
  const CustomStages stages(LoadStages(options.stages), plan, on_gpu, options.seed,
                            options.stage_options);
  const std::unique_ptr<CustomTraining> training = make(stages, process);
  std::optional<CustomCheck> check;
  if (options.check) check.emplace(stages, *training);
  std::optional<CustomReport> report;
  if (job.leads()) report.emplace(options, plan);
  Timeline timeline;  // of the last step that was timed
  std::string difference;
  int64_t compared = 0;
  int step = 0;
  bool asked = false;
  if (process == nullptr) CatchSignals(options.grace);
  while (step < options.steps && difference.empty()) {
    asked = job.Barrier() || stop_signal != 0;
    if (asked) break;
    const StepResult result = training->Step(++step);
    if (check) difference = job.AnyOf(check->DifferenceIn(step, result, &compared));
    if (!report) continue;
    if (!result.timeline.ranks[0].empty()) timeline = result.timeline;
    report->Step(step, result, step == options.steps || !difference.empty());
  }
  const std::string weights = WeightsOf(plan, training.get(), &job);
  int64_t total = 0;
  for (const std::string& bytes : job.Gather(ByteWriter().Put(compared).Take())) {
    total += ByteReader(bytes, "the number of bytes compared is").Take<int64_t>();
  }
  if (!options.trace.empty() && !timeline.ranks.empty()) {
    WriteFile(options.trace, WriteTrace(plan, timeline));
  }
  training->Close();
  const bool printed =
      !report || report->End(step, weights, total, difference, [&job] { job.Move(); });
  if (!difference.empty()) throw JobError("--check: " + difference);
  if (process == nullptr && stop_signal == SIGINT) EndBySignal(SIGINT);
  if (!printed) return kExitInput;
  return asked ? kExitStopped : kExitFine;
}

}  // namespace contraflow
