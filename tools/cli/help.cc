#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/cli/options.h"
#include "tools/cli/terminal.h"

namespace contraflow {
namespace {

/// Options under one heading of --help.
struct OptionGroup {
  const char* title;
  std::string_view names;  ///< without dashes, a space before and after each

  bool Has(const CLI::Option& option) const {
    return std::ranges::any_of(option.get_lnames(), [&](const std::string& name) {
      return names.find(" " + name + " ") != std::string_view::npos;
    });
  }
};

/// Options of `contraflow`. An option that is in none follows under "Options".
constexpr OptionGroup kPlannerGroups[] = {
    {"Model and GPUs",
     " model like hf gpu gpus tp cp ep etp global-batch seq micro-batch dtype fp8 tp-overlap "
     "optimizer activations workspace capacity device "},
    {"Schedule",
     " schedule schedules ranks microbatches chunks data-parallel expert-parallel placement "
     "partition for only fix level "},
    {"Costs",
     " costs f b w bw split fb comm host-link overlap efficiency measured wait from warmup mean "
     "semantics "
     "plan "},
    {"Memory", " memory memory-limit device-memory zero recompute offload "},
    {"Search", " budget until seed noise no-auto top "},
    {"Limits",
     " max-bubble max-bubble-ratio max-makespan max-exposed max-gap max-activations max-bytes "
     "max-memory formula bounds golden "},
    {"View", " rank to at instruction color width title html trace "},
    {"Output",
     " help output json csv format wide sort pareto vary all dump-after junit annotations stat "
     "quiet "
     "verbose "},
};

/// Options of `contraflow-run`.
constexpr OptionGroup kTrainerGroups[] = {
    {"Training",
     " model stages stage-options capacity data lr clip steps seed validation validate-every "
     "validate-batches check strict "},
    {"Devices and processes",
     " device transport rank-order rendezvous-timeout timeout secret-file grace graph no-graph "
     "stamps one-sided partition-sms matmul-choices "},
    {"Checkpoints", " checkpoint checkpoint-every checkpoint-keep resume resume-step "},
    {"Output", " help version log-every jsonl json peak-flops trace calibrate ask completion "},
};

/// Prints help as wide as the terminal: options in a column, their descriptions in the next.
class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(std::span<const OptionGroup> groups) : groups_(groups) {
    column_width(kNames);
    label("REQUIRED", "(required)");
  }

  std::string make_group(std::string title, bool positional,
                         std::vector<const CLI::Option*> options) const override {
    if (positional || options.size() <= kFewOptions) {
      return CLI::Formatter::make_group(title, positional, options);
    }
    std::string text;
    for (const OptionGroup& group : groups_) {
      std::vector<const CLI::Option*> its;
      std::erase_if(options, [&](const CLI::Option* option) {
        const bool in = group.Has(*option);
        if (in) its.push_back(option);
        return in;
      });
      if (!its.empty()) text += CLI::Formatter::make_group(group.title, false, its);
    }
    return text + (options.empty() ? "" : CLI::Formatter::make_group(title, false, options));
  }

  std::string make_option(const CLI::Option* option, bool positional) const override {
    return Beside(make_option_name(option, positional) + make_option_opts(option),
                  make_option_desc(option));
  }
  std::string make_subcommand(const CLI::App* command) const override {
    return Beside(command->get_name(), command->get_description());
  }
  std::string make_description(const CLI::App* app) const override {
    return Flowing(CLI::Formatter::make_description(app));
  }
  std::string make_usage(const CLI::App* app, std::string name) const override {
    return Wrapped(CLI::Formatter::make_usage(app, name), HelpWidth());
  }
  std::string make_footer(const CLI::App* app) const override {
    return Flowing(CLI::Formatter::make_footer(app));
  }

 private:
  static constexpr size_t kNames = 26;
  /// Shorter lists have no groups.
  static constexpr size_t kFewOptions = 8;

  /// Paragraphs, which an empty line divides.
  static std::string Flowing(std::string text) {
    for (size_t at = 1; at + 1 < text.size(); ++at) {
      if (text[at] == '\n' && text[at - 1] != '\n' && text[at + 1] != '\n') text[at] = ' ';
    }
    return Wrapped(text, HelpWidth());
  }

  static std::string Beside(const std::string& names, std::string text) {
    std::replace(text.begin(), text.end(), '\n', ' ');
    std::string out = "  " + names;
    if (!text.empty()) {
      out += out.size() + 2 > kNames ? "\n" : "";
      out.resize(out.size() + (out.back() == '\n' ? kNames : kNames - out.size()), ' ');
    }
    const std::string lines = Wrapped(text, HelpWidth() - static_cast<int>(kNames));
    const std::string indent = "\n" + std::string(kNames, ' ');
    for (size_t at = 0; at < lines.size(); ++at) {
      if (lines[at] != '\n') {
        out += lines[at];
        continue;
      }
      out += indent;
      while (at + 1 < lines.size() && lines[at + 1] == ' ') ++at;
    }
    return out + "\n";
  }

  std::span<const OptionGroup> groups_;
};

}  // namespace

void UseHelpFormatter(CLI::App* app) {
  const bool trainer = app->get_name() == "contraflow-run";
  app->formatter(
      std::make_shared<HelpFormatter>(trainer ? std::span<const OptionGroup>(kTrainerGroups)
                                              : std::span<const OptionGroup>(kPlannerGroups)));
}

}  // namespace contraflow
