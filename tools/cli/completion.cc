#include "tools/cli/completion.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>

#include "compiler/plan/text.h"

namespace contraflow {
namespace {

using Words = std::vector<std::string>;

std::string Joined(const Words& words, const char* separator = " ") {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

std::string OneLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

/// A command by its words, "costs init".
struct NamedCommand {
  std::string words;
  const CLI::App* app;
};

bool HasCommands(const CLI::App& app) { return !app.get_subcommands(nullptr).empty(); }

/// Commands of a program, each before its own; of one without any it is itself one, of no words.
std::vector<NamedCommand> CommandsOf(const CLI::App& program) {
  if (!HasCommands(program)) return {{"", &program}};
  std::vector<NamedCommand> commands;
  const std::function<void(const CLI::App&, const std::string&)> add = [&](const CLI::App& app,
                                                                           const std::string& at) {
    for (const CLI::App* command : app.get_subcommands(nullptr)) {
      const std::string words = at + (at.empty() ? "" : " ") + command->get_name();
      commands.push_back({words, command});
      add(*command, words);
    }
  };
  add(program, "");
  return commands;
}

/// "-o" and "--output"
Words NamesOf(const CLI::Option& option) {
  Words names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

Words ValuesOf(const CLI::Option& option, const KnownWords& known) {
  const std::string type = option.get_type_name();
  const bool choice = type.find('|') != std::string::npos &&
                      std::none_of(type.begin(), type.end(), [](unsigned char c) {
                        return std::isupper(c) != 0 || c == '.' || c == ',';
                      });
  if (choice) return CLI::detail::split(type, '|');
  for (const std::string& name : NamesOf(option)) {
    if (const auto found = known.find(name); found != known.end()) return found->second;
  }
  return {};
}

bool TakesFile(const CLI::Option& option) {
  return option.get_type_name().find("FILE") != std::string::npos;
}

std::vector<const CLI::Option*> OptionsOf(const CLI::App& app) {
  std::vector<const CLI::Option*> options;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) options.push_back(option);
  }
  return options;
}

Words NestedOf(const CLI::App& app) {
  Words names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
  return names;
}

/// Text of a manual page: a hyphen is a minus, and no line begins a request.
std::string Roff(const std::string& text) {
  std::string escaped;
  for (const char c : OneLine(text)) {
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else if ((c == '.' || c == '\'') && escaped.empty()) {
      escaped += std::string("\\&") + c;
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string ManualOfOptions(const CLI::App& app) {
  std::string text;
  for (const CLI::Option* option : app.get_options()) {
    const Words names = NamesOf(*option);
    const std::string title = names.empty() ? option->get_name(true) : Joined(names, ", ");
    text += ".TP\n\\fB" + Roff(title) + "\\fR";
    if (TakesValue(*option) && !names.empty() && !option->get_type_name().empty()) {
      text += " \\fI" + Roff(option->get_type_name()) + "\\fR";
    }
    text += "\n" + Roff(option->get_description()) + (option->get_required() ? " (required)" : "") +
            "\n";
  }
  return text;
}

}  // namespace

std::string WriteCompletion(const CLI::App& program, const KnownWords& known) {
  const std::string& name = program.get_name();
  // A function of a shell has no hyphen everywhere.
  std::string function = "_" + name;
  std::replace(function.begin(), function.end(), '-', '_');
  const bool commands = HasCommands(program);
  std::string words, values;
  for (const NamedCommand& command : CommandsOf(program)) {
    if (command.words.find(' ') != std::string::npos) continue;
    Words offered = NestedOf(*command.app);
    for (const CLI::Option* option : OptionsOf(*command.app)) {
      const Words names = NamesOf(*option);
      offered.insert(offered.end(), names.begin(), names.end());
      const Words own = ValuesOf(*option, known);
      if (own.empty()) continue;
      Words patterns;
      for (const std::string& one : names) patterns.push_back(command.words + "," + one);
      values += "    " + Joined(patterns, "|") + ") words=" + ShellWord(Joined(own)) +
                (TakesFile(*option) ? " files=-f" : "") + " ;;\n";
    }
    words += "      '" + command.words + "') words=" + ShellWord(Joined(offered)) + " ;;\n";
  }
  const std::string first =
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    words=" + ShellWord(Joined(NestedOf(program))) +
      "\n  elif [ -z \"$words\" ] && [[ $now == -* || $COMP_CWORD -eq 2 ]]; then\n";
  return "# bash completion of " + name + "\n" + function +
         "() {\n"
         "  local now=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words= files=\n"
         "  local command=" +
         (commands ? "${COMP_WORDS[1]}" : "") + "\n  case $command,$before in\n" + values +
         "  esac\n" + (commands ? first : "  if [ -z \"$words\" ] && [[ $now == -* ]]; then\n") +
         "    case $command in\n" + words +
         "    esac\n"
         "  fi\n"
         "  mapfile -t COMPREPLY < <(compgen $files -W \"$words\" -- \"$now\")\n"
         "}\n"
         "complete -o default -F " +
         function + " " + name + "\n";
}

std::string WriteManual(const CLI::App& program, const std::string& version) {
  const std::string& name = program.get_name();
  std::string upper = name;
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  const bool commands = HasCommands(program);
  const std::string about = OneLine(program.get_description());
  const std::string sentence = about.substr(0, about.find(". "));
  std::string text =
      ".TH " + upper + " 1 \"\" \"" + name + " " + version + "\"\n.SH NAME\n" + Roff(name) +
      " \\- " + Roff(sentence) + "\n.SH SYNOPSIS\n.B " + Roff(name) +
      (commands ? "\n.I COMMAND\n[OPTIONS]\n.SH COMMANDS\n"
                : "\n[OPTIONS]\n.I PLAN\n.SH DESCRIPTION\n" + Roff(about) + "\n.SH OPTIONS\n");
  for (const NamedCommand& command : CommandsOf(program)) {
    if (commands) {
      text += ".SS " + Roff(name + " " + command.words) + "\n" +
              Roff(command.app->get_description()) + "\n";
    }
    text += ManualOfOptions(*command.app);
    if (const std::string footer = command.app->get_footer(); !footer.empty()) {
      text += ".PP\n" + Roff(footer) + "\n";
    }
  }
  if (!commands) return text;  // its footer has the exit codes
  return text +
         ".SH EXIT STATUS\n0 success; 1 bad input, or a check failed (for diff: the plans differ); "
         "2 bad command line; 70 a bug in " +
         Roff(name) + ".\n";
}

}  // namespace contraflow
