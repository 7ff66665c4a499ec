#include "tools/cli/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>

#include "compiler/files/file.h"
#include "compiler/plan/error.h"
#include "runtime/model/model.h"
#include "tools/cli/exit.h"

namespace contraflow {
namespace {

std::string Shown(const std::string& text) { return text.substr(0, 64); }

std::string Quoted(const std::string& text) { return "\"" + Shown(text) + "\""; }

/// Text of a decimal number of type T in [low, high], which becomes what the parser reads the same
/// way; it takes octal, too.
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
      throw UsageError(name + ": " + Shown(text) + " is too " + (small ? "small" : "large") +
                       ", the limit is " + std::to_string(small ? low : high));
    }
    text = std::to_string(value);
    return "";
  };
  return {read, ""};
}

CLI::Validator Decimal(const std::string& name) {
  const auto read = [=](const std::string& text) -> std::string {
    const char* const end = text.data() + text.size();
    double value = 0;
    const auto [at, error] = std::from_chars(text.data(), end, value);
    if (at != end || error == std::errc::invalid_argument || !std::isfinite(value)) {
      return "must be a finite number, is " + Quoted(text);
    }
    if (error != std::errc()) throw UsageError(name + ": " + Shown(text) + " is out of range");
    return "";
  };
  return {read, ""};
}

CLI::Validator OneOf(const std::string& known) {
  const auto read = [=](const std::string& text) -> std::string {
    const std::vector<std::string> names = CLI::detail::split(known, '|');
    if (std::find(names.begin(), names.end(), text) != names.end()) return "";
    return "must be " + known + ", is " + Quoted(text) + DidYouMean(Shown(text), names);
  };
  return {read, ""};
}

/// What nothing took of the words: "unknown option "--rnaks" (did you mean "--ranks"?)"; or "".
std::string DescribeLeftOver(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  const std::vector<std::string> left = app.remaining();
  for (const std::string& word : left) {
    if (word.size() < 2 || word[0] != '-') continue;
    const std::string name = Shown(word.substr(0, word.find('=')));
    return "unknown option \"" + name + "\"" + DidYouMean(name, names);
  }
  return left.empty() ? "" : "unexpected argument " + Quoted(left.front());
}

std::string UnknownCommand(const std::string& word, const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
  return "unknown command " + Quoted(word) + DidYouMean(Shown(word), names) + "; commands are " +
         CLI::detail::join(names, ", ");
}

/// `app` is a program without commands, or a command.
std::string Describe(const CLI::ParseError& error, const CLI::App& app) {
  const std::string text = error.what();
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
  return app->add_option(name, *field, help)->type_name(noun)->check(Decimal(name));
}

CLI::Option* AddNumber(CLI::App* app, const std::string& name, double* field,
                       const std::string& noun, const std::string& help) {
  return app->add_option(name, *field, help)->type_name(noun)->check(Decimal(name));
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
      "--capacity: must be in 0.01..64, such as 1.25; leave it out for the model's "
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

CLI::Option* AddJson(CLI::App* app, bool* field) {
  return AddFlag(app, "--json", field, "print one JSON document and nothing else");
}

bool Parse(CLI::App* app, const std::vector<std::string>& words) {
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
    app.get_formatter()->column_width(34);
    app.get_formatter()->label("REQUIRED", "(required)");
    add(&app);
    return Parse(&app, words) ? run() : kExitFine;
  });
}

}  // namespace contraflow
