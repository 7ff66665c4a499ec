#include "tools/cli/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>

#include "compiler/files/file.h"
#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "compiler/plan/text.h"
#include "runtime/model/model.h"
#include "tools/cli/exit.h"
#include "tools/cli/terminal.h"

namespace contraflow {
namespace {

std::string Shown(const std::string& text) { return text.substr(0, 64); }

std::string Quoted(const std::string& text) { return "\"" + Shown(text) + "\""; }

/// Turns a decimal number of type T in [low, high] into text that CLI11 reads the same way. CLI11
/// takes octal, too.
template <typename T>
CLI::Validator IntegerIn(const std::string& name, T low, T high) {
  const auto read = [=](std::string& text) -> std::string {
    const char* const end = text.data() + text.size();
    int64_t value = 0;
    const auto [at, error] = std::from_chars(text.data(), end, value);
    if (at != end || error == std::errc::invalid_argument) {
      return "must be a whole number, is " + Quoted(text);
    }
    const bool small = error == std::errc() ? value < low : text[0] == '-';
    if (small || error != std::errc() || value > high) {
      throw UsageError(FieldOf(name) + ": " + Shown(text) + " is too " +
                       (small ? "small" : "large") + ", the limit is " +
                       std::to_string(small ? low : high));
    }
    text = std::to_string(value);
    return "";
  };
  return {read, ""};
}

/// "0.1", or "10%", which becomes that.
CLI::Validator Decimal(const std::string& name) {
  const auto read = [=](std::string& text) -> std::string {
    const bool percent = text.ends_with('%');
    const char* const end = text.data() + (percent ? text.find_last_not_of(" %") + 1 : text.size());
    double value = 0;
    const auto [at, error] = std::from_chars(text.data(), end, value);
    if (at != end || error == std::errc::invalid_argument || !std::isfinite(value)) {
      return "must be a finite number, is " + Quoted(text);
    }
    if (error != std::errc())
      throw UsageError(FieldOf(name) + ": " + Shown(text) + " is out of range");
    if (percent) text = FormatReal(value / 100);
    return "";
  };
  return {read, ""};
}

/// Options, commands and values, and the plain words for them elsewhere.
constexpr std::pair<std::string_view, std::string_view> kOtherWords[] = {
    {"--ranks", " pp stages numstages pipelineparallel pipelineparallelsize "},
    {"--microbatches", " mb nummicrobatches gradientaccumulationsteps "},
    {"--chunks", " vpp virtualstages "},
    {"--data-parallel", " dp "},
    {"--expert-parallel", " ep "},
    {"--memory-limit", " maxmemory "},
    {"--device-memory", " gpumemory vram "},
    {"cuda", " gpu gpus nvidia "},
    {"contraflow-run", " run train execute "},
    {"show", " visualize visualise draw plot view "},
    {"compile", " plan generate "},
};

/// The hint for a word that is none of `names`.
std::string Hint(const std::string& word, const std::vector<std::string>& names) {
  const std::string plain = Plain(word);
  for (const std::string& name : names) {
    const auto means = [&](const auto& words) {
      return words.first == name && words.second.find(" " + plain + " ") != std::string::npos;
    };
    if (plain == Plain(name) || std::ranges::any_of(kOtherWords, means)) {
      return DidYouMean(name, names);
    }
  }
  return DidYouMean(word, names);
}

CLI::Validator OneOf(const std::string& known) {
  const auto read = [=](const std::string& text) -> std::string {
    const std::vector<std::string> names = CLI::detail::split(known, '|');
    if (std::find(names.begin(), names.end(), text) != names.end()) return "";
    return "must be " + known + ", is " + Quoted(text) + Hint(Shown(text), names);
  };
  return {read, ""};
}

/// Keys of --fix, which other tools have as options.
constexpr std::string_view kFixed[] = {"tp",  "cp", "ep",          "etp", "pp",
                                       "vpp", "dp", "micro-batch", "zero"};

/// Returns the words that nothing took: "unknown option "--rnaks" (did you mean "--ranks"?)"; or
/// "".
std::string DescribeLeftOver(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  const std::vector<std::string> left = app.remaining();
  for (const std::string& word : left) {
    if (word.size() < 2 || word[0] != '-') continue;
    const std::string name = Shown(word.substr(0, word.find('=')));
    const std::string key = name.substr(std::min<size_t>(2, name.size()));
    if (app.get_option_no_throw("--fix") != nullptr &&
        std::ranges::find(kFixed, key) != std::end(kFixed)) {
      return "unknown option \"" + name + "\"; give --fix " + key + "=N";
    }
    return "unknown option \"" + name + "\"" + Hint(name, names);
  }
  return left.empty() ? "" : "unexpected argument " + Quoted(left.front());
}

std::string UnknownCommand(const std::string& word, const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
  const std::string list = CLI::detail::join(names, ", ");
  names.emplace_back("contraflow-run");
  return "unknown command " + Quoted(word) + Hint(Shown(word), names) + "; commands are " + list;
}

/// `app` is a program without commands, or a command.
std::string Describe(const CLI::ParseError& error, const CLI::App& app) {
  std::string text = error.what();
  // The parser begins with the flag.
  const size_t end = text.find_first_of(": ");
  if (text.starts_with("--")) text.replace(0, end, FieldOf(text.substr(0, end)));
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    return text.substr(0, text.find(':')) + " must be given once, with one value";
  }
  const std::string left_over = DescribeLeftOver(app);
  return left_over.empty() ? text : left_over;
}

/// `app` has commands.
std::string DescribeWithCommands(const CLI::ParseError& error, const CLI::App& app) {
  const std::string see = "; see " + app.get_name();
  const std::vector<std::string> left = app.remaining();
  if (!left.empty()) {
    if (!left.front().starts_with("-")) return UnknownCommand(left.front(), app);
    return DescribeLeftOver(app) + see + " --help";
  }
  if (app.get_subcommands().empty()) return "no command given" + see + " --help";
  const CLI::App* command = &app;
  std::string name;
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    name += (name.empty() ? "" : " ") + command->get_name();
  }
  return name + ": " + Describe(error, *command) + see + " " + name + " --help";
}

}  // namespace

CLI::Option* AddInteger(CLI::App* app, const std::string& name, int* field, const std::string& noun,
                        const std::string& help, int least) {
  return app->add_option(name, *field, help)
      ->type_name(noun)
      ->transform(IntegerIn(name, least, std::numeric_limits<int>::max()));
}

CLI::Option* AddInteger(CLI::App* app, const std::string& name, std::optional<int64_t>* field,
                        const std::string& noun, const std::string& help) {
  return app->add_option(name, *field, help)
      ->type_name(noun)
      ->transform(IntegerIn<int64_t>(name, 0, std::numeric_limits<int64_t>::max()));
}

CLI::Option* AddNumber(CLI::App* app, const std::string& name, std::optional<double>* field,
                       const std::string& noun, const std::string& help) {
  return app->add_option(name, *field, help)->type_name(noun)->transform(Decimal(name));
}

CLI::Option* AddNumber(CLI::App* app, const std::string& name, double* field,
                       const std::string& noun, const std::string& help) {
  return app->add_option(name, *field, help)->type_name(noun)->transform(Decimal(name));
}

CLI::Option* AddTime(CLI::App* app, const std::string& name, std::optional<GivenTime>* field,
                     const std::string& help) {
  const auto set = [=](const std::string& text) {
    const std::string share = name + "-ratio";
    if (text.ends_with('%') && app->get_option_no_throw(share) != nullptr) {
      throw CLI::ValidationError(name, "is a time; give a share as " + FieldOf(share) + " " + text);
    }
    try {
      *field = ParseGivenTime(text);
    } catch (const Error& error) {
      throw CLI::ValidationError(name, error.what());
    }
  };
  return app->add_option_function<std::string>(name, set, help)->type_name("T");
}

CLI::Option* AddSeconds(CLI::App* app, const std::string& name, double* field,
                        const std::string& help) {
  const auto set = [=](const std::string& text) {
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, *field);
    if (error == std::errc() && at == end && std::isfinite(*field)) return;
    *field = static_cast<double>(ParseDuration(name, text)) * 1e-9;
  };
  return app->add_option_function<std::string>(name, set, help)->type_name("SECONDS");
}

namespace {

/// The search stops counting there, too: a week.
constexpr int64_t kMostSeconds = 7 * 24 * 3600;

[[noreturn]] void FailDuration(const std::string& flag, const std::string& text) {
  throw UsageError(FieldOf(flag) +
                   ": must be a time up to 7 days, such as 500ms, 1s, 2m or 1h, is \"" +
                   text.substr(0, 40) + "\"");
}

}  // namespace

int64_t ParseDuration(const std::string& flag, const std::string& text) {
  const char* const end = text.data() + text.size();
  double value = 0;
  const auto [at, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (error != std::errc() || !(value >= 0)) FailDuration(flag, text);
  const std::string unit(at, end);
  const double seconds = unit == "ms"                   ? value / 1000
                         : unit == "s"                  ? value
                         : unit == "m" || unit == "min" ? value * 60
                         : unit == "h"                  ? value * 3600
                         : unit == "d"                  ? value * 24 * 3600
                                                        : -1;
  if (!(seconds >= 0 && seconds <= static_cast<double>(kMostSeconds))) FailDuration(flag, text);
  return std::llround(seconds * 1e9);
}

CLI::Option* AddText(CLI::App* app, const std::string& name, std::string* field,
                     const std::string& noun, const std::string& help) {
  const auto set = [=](const std::string& text) {
    // A validator's message would begin with the last of the names.
    if (text.empty()) throw CLI::ValidationError(name, "needs a value, is \"\"");
    *field = text;
  };
  return app->add_option_function<std::string>(name, set, help)->type_name(noun);
}

CLI::Option* AddChoice(CLI::App* app, const std::string& name, std::string* field,
                       const std::string& known, const std::string& help) {
  return app->add_option(name, *field, help)->type_name(known)->check(OneOf(known));
}

CLI::Option* AddPlan(CLI::App* app, std::string* field, const std::string& name) {
  return app->add_option(name, *field, "plan file or folder; - is standard input")
      ->type_name("")
      ->required();
}

void CheckCapacity(double capacity) {
  if (capacity >= kLeastCapacity && capacity <= kMostCapacity) return;
  throw UsageError(
      "`capacity`: must be in 0.01..64, such as 1.25; leave it out for the model's "
      "own, which by default serves every token");
}

CLI::Option* AddTexts(CLI::App* app, const std::string& name, std::vector<std::string>* field,
                      const std::string& help) {
  return app->add_option(name, *field, help)->type_name("");
}

void RefuseOverwrite(const NamedFile& output, std::initializer_list<NamedFile> inputs) {
  namespace fs = std::filesystem;
  if (output.path.empty() || output.path == "-") return;
  std::error_code error;
  const fs::path target = fs::weakly_canonical(output.path, error);
  for (const NamedFile& input : inputs) {
    if (input.path.empty() || error) continue;
    if (target != fs::weakly_canonical(input.path, error)) continue;
    throw Error(output.what + " " + output.path + ": is also " + input.what +
                ", which it would overwrite; name another file");
  }
}

void Require(CLI::Option* option) { option->required(); }

CLI::Option* AddFlag(CLI::App* app, const std::string& name, bool* field, const std::string& help) {
  return app->add_flag(name, *field, help);
}

void AddQuiet(CLI::App* app, bool* field) {
  const auto set = [field] {
    SetVerbosity(Verbosity::kQuiet);
    if (field != nullptr) *field = true;
  };
  app->add_flag_callback("-q,--quiet", set,
                         field == nullptr ? "no warnings, notes or progress on standard error"
                                          : "print nothing on success");
}

void AddVerbose(CLI::App* app, const std::string& help, bool* field) {
  const auto set = [app, field] {
    if (app->count("--quiet") > 0) throw UsageError("-q: is for less, -v for more; drop one");
    SetVerbosity(Verbosity::kVerbose);
    if (field != nullptr) *field = true;
  };
  app->add_flag_callback("-v,--verbose", set, help);
}

CLI::Option* AddJson(CLI::App* app, bool* field) {
  return AddFlag(app, "--json", field, "print one JSON document and nothing else");
}

bool Parse(CLI::App* app, const std::vector<std::string>& words) {
  if (words.size() == 1 && words.front() == "version") return Parse(app, {"--version"});
  KnowOptions(*app);
  try {
    // The parser takes its words from the back.
    app->parse(std::vector<std::string>(words.rbegin(), words.rend()));
    return true;
  } catch (const CLI::CallForHelp&) {
    WriteFile("-", app->help());
  } catch (const CLI::CallForVersion& version) {
    WriteFile("-", version.what() + std::string("\n"));
  } catch (const CLI::ParseError& error) {
    if (!app->get_subcommands(nullptr).empty()) throw UsageError(DescribeWithCommands(error, *app));
    throw UsageError(Describe(error, *app) + "; see " + app->get_name() + " --help");
  }
  return false;
}

void ParseOptions(const std::vector<std::string>& words,
                  const std::function<void(CLI::App* app)>& add) {
  CLI::App app;
  app.set_help_flag();
  add(&app);
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::ParseError& error) {
    throw UsageError(Describe(error, app));
  }
}

int RunTool(const std::string& program, const std::string& description, int argc, char** argv,
            const std::function<void(CLI::App* app)>& add, const std::function<int()>& run) {
  return RunMain(program, argc, argv, [&](const std::vector<std::string>& words) {
    CLI::App app(description, program);
    UseHelpFormatter(&app);
    add(&app);
    return Parse(&app, words) ? run() : kExitFine;
  });
}

}  // namespace contraflow
