#include <algorithm>
#include <utility>

#include "compiler/files/file.h"
#include "compiler/plan/error.h"
#include "tools/interop/interop.h"
#include "tools/interop/stage_layers.h"

// Keys and their meaning: torchtitan, torchtitan/config (ParallelismConfig) and
// torchtitan/distributed/pipeline_parallel.py.

namespace contraflow {
namespace {

bool HasPairs(const Plan& plan) {
  return std::ranges::any_of(plan.programs, [](const Program& program) {
    return std::ranges::any_of(program, [](const Instruction& i) { return i.op == Op::FB; });
  });
}

/// The schedule whose stages live where those of the plan do.
std::string PlacingSchedule(const Plan& plan) {
  const std::vector<int>& ranks = plan.routes.at(0).ranks;
  const int P = plan.ranks;
  bool looped = plan.stages % P == 0, v = plan.stages == 2 * P;
  for (int s = 0; s < plan.stages; ++s) {
    const int rank = ranks[static_cast<size_t>(s)];
    looped = looped && rank == s % P;
    v = v && rank == (s < P ? s : 2 * P - 1 - s);
  }
  if (looped) return plan.stages == P ? "1F1B" : "Interleaved1F1B";
  if (v) return HasPairs(plan) ? "DualPipeV" : "ZBVZeroBubble";
  throw Error(
      "torchtitan has no schedule that places stages like this plan: it has one stage a rank, "
      "rank after rank again and again, or a V");
}

/// A basic string of TOML.
std::string QuoteToml(const std::string& text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') out += '\\';
    if (byte < 0x20 || byte == 0x7f) {
      out += {'\\', 'u', '0', '0', kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      out += c;
    }
  }
  return out + "\"";
}

/// The modules of each stage, a list a line.
std::string ModulesOf(const LayerLayout& layout) {
  std::string text = "[\n";
  int layer = 0;
  for (const std::string& stage : layout) {
    std::string modules;
    const auto add = [&](const std::string& name) {
      modules += (modules.empty() ? "" : ", ") + QuoteToml(name);
    };
    for (const char c : stage) {
      if (c == 'm') {
        throw Error("torchtitan has no module for a layer of multi-token prediction (m)");
      }
      if (c == 'E') add("tok_embeddings");
      if (c == 't') add("layers." + std::to_string(layer++));
      if (c == 'L') {
        add("norm");
        add("lm_head");
      }
    }
    text += "  [" + modules + "],\n";
  }
  return text + "]";
}

}  // namespace

std::string WriteTorchtitan(const Plan& plan, const std::string& csv,
                            const std::optional<std::string>& layers) {
  CF_ASSERT(plan.routes.size() == 1);
  const std::string schedule = PlacingSchedule(plan);
  const LayerLayout layout = LayersOfStages(plan, layers);
  const bool v = schedule == "DualPipeV" || schedule == "ZBVZeroBubble";
  std::string text = "# " + plan.schedule + ", " + std::to_string(plan.ranks) + " ranks, " +
                     std::to_string(plan.stages) + " stages, " + std::to_string(plan.microbatches) +
                     " micro-batches; needs torch >= " + ToString(TorchReleaseFor(plan)) + "\n";
  for (const std::string& note : TorchNotes(plan)) text += "# " + note + "\n";
  text += "\n[parallelism]\n";
  const auto set = [&](const char* key, const std::string& value) {
    text += std::string(key) + " = " + value + "\n";
  };
  set("pipeline_parallel_degree", std::to_string(plan.ranks));
  if (plan.expert_parallel > 1) {
    set("expert_parallel_degree", std::to_string(plan.expert_parallel));
  }
  text += "# Only places the stages; what runs is the file.\n";
  set("pipeline_parallel_schedule", QuoteToml(schedule));
  set("pipeline_parallel_schedule_csv", QuoteToml(csv));
  if (v) {
    text +=
        "# PyTorch's defer_pp_recv must stay off, as it is in torchtitan: with a V it receives in\n"
        "# another order than it sends.\n";
  }
  text += "# Releases without this key: training.local_batch_size is so many micro-batches.\n";
  set("num_pp_microbatches", std::to_string(plan.microbatches));
  text +=
      "# In the newest releases pipeline_parallel_module_fqns_per_model_part; lm_head was "
      "output.\n";
  set("module_fqns_per_model_part", ModulesOf(layout));
  // The number that gives as many stages, of torchtitan's own cut: embedding and head count one
  // layer each.
  int64_t count = 2;
  for (const std::string& stage : layout) count += std::count(stage.begin(), stage.end(), 't');
  const int64_t each = (count + plan.stages - 1) / plan.stages;
  if ((count + each - 1) / each == plan.stages) {
    text += "# Instead of the modules, for an even cut of torchtitan's own:\n";
    set("# pipeline_parallel_layers_per_stage", std::to_string(each));
  }
  const RecomputedCells recomputed(plan);
  bool all = true;
  for (int s = 0; s < plan.stages; ++s) {
    all = all && recomputed.HasStage(s) && recomputed.extent(s).whole();
  }
  if (all) text += "\n[activation_checkpoint]\nmode = \"full\"\n";
  return text;
}

std::string CsvBeside(const std::string& output) {
  const size_t name = output.rfind('/') + 1, dot = output.rfind('.');
  return output.substr(0, dot == std::string::npos || dot <= name ? output.size() : dot) + ".csv";
}

void WriteTorchtitanFiles(const Plan& plan, const std::string& output,
                          const std::optional<std::string>& layers) {
  const std::string csv = CsvBeside(output), schedule = WriteTorchCsv(plan);
  const std::string values = WriteTorchtitan(plan, csv, layers);
  WriteFile(csv, schedule);
  WriteFile(output, values);
}

}  // namespace contraflow
