#include <algorithm>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/text.h"
#include "tools/interop/interop.h"
#include "tools/interop/launch.h"
#include "tools/interop/stage_layers.h"

// Keys and their meaning: torchtitan, torchtitan/config (ParallelismConfig, and ConfigManager for
// flags) and torchtitan/distributed/pipeline_parallel.py.

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

/// A string of TOML and of Python, whose escapes these are.
std::string Quoted(const std::string& text) {
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

/// One value of torchtitan's ParallelismConfig, or of its TrainingConfig.
struct Setting {
  std::string key;
  std::string value;  ///< in Python and TOML
  std::string flag;   ///< on the command line
  std::string comment = {};
  const char* section = "parallelism";
};

Setting OfNumber(const std::string& key, int64_t number) {
  return {key, std::to_string(number), std::to_string(number)};
}

/// The modules of each stage: a list of lists, or a word a stage.
Setting ModulesOf(const LayerLayout& layout) {
  Setting setting = {"module_fqns_per_model_part", "[\n", "",
                     "torchtitan deletes every layer that is not listed."};
  int layer = 0;
  for (const std::string& stage : layout) {
    std::vector<std::string> names;
    for (const char c : stage) {
      if (c == 'm') {
        throw Error("torchtitan has no module for a layer of multi-token prediction (m)");
      }
      if (c == 'E') names.emplace_back("tok_embeddings");
      if (c == 't') names.push_back("layers." + std::to_string(layer++));
      if (c == 'L') names.insert(names.end(), {"norm", "lm_head"});
    }
    setting.value += "        [";
    setting.flag += setting.flag.empty() ? "" : " ";
    for (size_t i = 0; i < names.size(); ++i) {
      setting.value += (i > 0 ? ", " : "") + Quoted(names[i]);
      setting.flag += (i > 0 ? "," : "") + names[i];
    }
    setting.value += "],\n";
  }
  setting.value += "    ]";
  return setting;
}

/// The values that no plan has. Replicas shard all that they hold from ZeRO-1 on.
std::vector<Setting> SettingsOf(const Launch& launch, const Plan& plan) {
  const Parallel parallel = ParallelOf(plan, plan.costs.value_or(CostModel()));
  const int64_t replicas = int64_t{plan.data_parallel} * parallel.batches();
  const int64_t tokens = launch.micro_batch * launch.sequence;
  const auto training = [](const std::string& key, int64_t number) {
    Setting setting = OfNumber(key, number);
    setting.section = "training";
    return setting;
  };
  std::vector<Setting> settings = {
      OfNumber("tensor_parallel_degree", parallel.tp),
      OfNumber("context_parallel_degree", parallel.cp),
      OfNumber("data_parallel_replicate_degree", launch.zero > 0 ? 1 : replicas),
      OfNumber("data_parallel_shard_degree", launch.zero > 0 ? replicas : 1),
      training("max_context_length", launch.sequence),
      training("num_tokens_per_microbatch_per_dp_rank", tokens),
      training("num_tokens_per_train_step", tokens * plan.microbatches * replicas)};
  if (launch.optimizer != "adam") {
    Setting setting = {"dtype", Quoted("bfloat16"), "bfloat16",
                       "Parameters and AdamW's state, too."};
    setting.section = "training";
    settings.push_back(setting);
  }
  return settings;
}

std::vector<Setting> SettingsOf(const Plan& plan, const std::string& csv,
                                const LayerLayout& layout) {
  const std::string schedule = PlacingSchedule(plan);
  const bool v = schedule == "DualPipeV" || schedule == "ZBVZeroBubble";
  std::vector<Setting> settings = {OfNumber("pipeline_parallel_degree", plan.ranks)};
  if (plan.expert_parallel > 1) {
    settings.push_back(OfNumber("expert_parallel_degree", plan.expert_parallel));
  }
  settings.push_back({"pipeline_parallel_schedule", Quoted(schedule), schedule,
                      "Only places the stages; the file has the order that runs."});
  settings.push_back({"pipeline_parallel_schedule_csv", Quoted(csv), ShellWord(csv),
                      v ? "PyTorch's defer_pp_recv must stay off: with a V it receives in another "
                          "order than it sends."
                        : ""});
  settings.push_back(OfNumber("num_pp_microbatches", plan.microbatches));
  settings.push_back(ModulesOf(layout));
  return settings;
}

bool RecomputesAll(const Plan& plan) {
  const RecomputedCells recomputed(plan);
  for (int s = 0; s < plan.stages; ++s) {
    if (!recomputed.HasStage(s) || !recomputed.extent(s).whole()) return false;
  }
  return true;
}

/// The plan and its notes, each line after `prefix`.
std::string AboutPlan(const Plan& plan, const std::string& prefix) {
  std::string text = prefix + plan.schedule + ", " + std::to_string(plan.ranks) + " ranks, " +
                     std::to_string(plan.stages) + " stages, " + std::to_string(plan.microbatches) +
                     " micro-batches; needs torch >= " + ToString(TorchReleaseFor(plan)) + "\n";
  for (const std::string& note : TorchNotes(plan)) text += prefix + note + "\n";
  return text;
}

/// A value a line, each with its comment above it, and in Python with the section it is in.
std::string ValueLines(const std::vector<Setting>& settings, const std::string& indent,
                       bool python) {
  std::string text;
  for (const Setting& setting : settings) {
    if (!setting.comment.empty()) text += indent + "# " + setting.comment + "\n";
    if (python) text += indent + "config." + setting.section + ".";
    text += setting.key + " = " + setting.value + "\n";
  }
  return text;
}

/// A flag a line, the subcommand of `checkpoint` (full, none or "") last.
std::string FlagLines(const std::vector<Setting>& settings, const std::string& checkpoint,
                      const std::string& indent) {
  std::string text;
  for (const Setting& setting : settings) {
    text += indent + "--" + setting.section + "." + setting.key + " " + setting.flag + "\n";
  }
  return checkpoint.empty() ? text : text + indent + "activation-checkpoint:" + checkpoint + "\n";
}

std::string TomlText(const Plan& plan, const std::vector<Setting>& settings, bool full) {
  return AboutPlan(plan, "# ") +
         "# For releases before February 2026; later ones read no TOML. Where num_pp_microbatches\n"
         "# is no key, training.local_batch_size is that number. lm_head was output.\n"
         "\n[parallelism]\n" +
         ValueLines(settings, "", false) +
         (full ? "\n[activation_checkpoint]\nmode = \"full\"\n" : "");
}

std::string PythonText(const Plan& plan, const std::vector<Setting>& settings,
                       const std::string& checkpoint) {
  const std::string about =
      AboutPlan(plan, "") +
      "\nA function for torchtitan's --module and --config takes a configuration and gives it this "
      "pipeline:\n\n    def my_run():\n        return with_plan(llama3_8b())\n\n"
      "The same as flags of torchtitan's command line:\n\n" +
      FlagLines(settings, checkpoint, "    ");
  std::string text = "\"\"\"";
  for (const char c : about) text += c == '\\' || c == '"' ? std::string{'\\', c} : std::string{c};
  text += "\"\"\"\n\n";
  if (checkpoint == "full")
    text += "from torchtitan.distributed.activation_checkpoint import FullAC\n\n";
  text +=
      "\ndef with_plan(config):\n    \"\"\"Returns this Trainer.Config with the pipeline of the "
      "plan.\"\"\"\n" +
      ValueLines(settings, "    ", true);
  if (!checkpoint.empty()) {
    text += "    config.activation_checkpoint = ";
    text += checkpoint == "full" ? "FullAC.Config()\n" : "None\n";
  }
  return text + "    return config\n";
}

}  // namespace

bool IsTorchtitanForm(std::string_view form) {
  return form == "python" || form == "flags" || form == "toml";
}

std::string WriteTorchtitan(const Plan& plan, const std::string& csv,
                            const std::optional<std::string>& layers, std::string_view form,
                            const Launch* launch) {
  CF_ASSERT(plan.routes.size() == 1 && IsTorchtitanForm(form) && (!launch || form != "toml"));
  std::vector<Setting> settings =
      SettingsOf(plan, csv, LayersOfStages(plan, layers, UnknownLayers::kRefuse));
  if (launch) {
    const std::vector<Setting> more = SettingsOf(*launch, plan);
    settings.insert(settings.end(), more.begin(), more.end());
  }
  const bool full = RecomputesAll(plan);
  if (form == "toml") return TomlText(plan, settings, full);
  // Configurations have a selective one where nothing else is said.
  const std::string checkpoint = full ? "full" : launch ? "none" : "";
  return form == "flags" ? FlagLines(settings, checkpoint, "")
                         : PythonText(plan, settings, checkpoint);
}

std::string CsvBeside(const std::string& output) {
  const size_t name = output.rfind('/') + 1, dot = output.rfind('.');
  return output.substr(0, dot == std::string::npos || dot <= name ? output.size() : dot) + ".csv";
}

std::string FlawOfTorchtitanFile(const std::string& output, std::string_view form) {
  const std::string name = form == "toml" ? "run.toml" : "run.py";
  if (output == "-" || CsvBeside(output) == output) {
    return "torchtitan gets a file of values and a CSV of that name next to it; give a file such "
           "as " +
           name;
  }
  if (!output.ends_with(".toml") || form == "toml") return "";
  return "torchtitan reads no TOML since February 2026; give a file such as " + name +
         ", or `form` toml for an older release";
}

}  // namespace contraflow
