#include "tools/cli/exit.h"

#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <set>

#include "compiler/files/file.h"
#include "tools/cli/compare_flags.h"
#include "tools/cli/compile_flags.h"
#include "tools/cli/terminal.h"

namespace contraflow {
namespace {

std::string Respelled(std::string_view name, char from, char to) {
  std::string respelled(name);
  std::ranges::replace(respelled, from, to);
  return respelled;
}

using Fields = std::set<std::string, std::less<>>;

void AddFields(const CLI::App& app, Fields* fields) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) fields->insert(Respelled(name, '-', '_'));
  }
  for (const CLI::App* command : app.get_subcommands(nullptr)) AddFields(*command, fields);
}

/// Fields of the options that texts name. Every program has the fields of compile and compare,
/// since a plan that it cannot run is compiled again.
Fields& KnownFields() {
  static Fields known = [] {
    Fields fields;
    CompileFlags compile;
    CompareFlags compare;
    CLI::App compiling, comparing;
    AddCompileOptions(&compiling, &compile);
    AddCompareOptions(&comparing, &compare);
    AddFields(compiling, &fields);
    AddFields(comparing, &fields);
    return fields;
  }();
  return known;
}

std::string Rendered(std::string_view text, bool flags) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    const size_t end = text[at] == '`' ? text.find('`', at + 1) : std::string_view::npos;
    const std::string_view field = text.substr(at + 1, end - at - 1);
    if (end == std::string_view::npos || !KnownFields().contains(field)) {
      out += text[at];
      continue;
    }
    out += flags ? "--" + Respelled(field, '_', '-') : std::string(field);
    at = end;
  }
  return out;
}

}  // namespace

void KnowOptions(const CLI::App& app) { AddFields(app, &KnownFields()); }

std::string FieldOf(std::string_view flag) {
  return "`" + Respelled(flag.substr(flag.find_first_not_of('-')), '-', '_') + "`";
}

std::string WithFlags(std::string_view text) { return Rendered(text, true); }
std::string WithKeywords(std::string_view text) { return Rendered(text, false); }

namespace {

ExitError WordsOf(const std::exception_ptr& error) {
  const std::string bug = "internal error: ",
                    report = "; this is a bug in contraflow, please report it";
  if (error == nullptr) return {bug + "std::terminate" + report, kExitBug};
  try {
    std::rethrow_exception(error);
  } catch (const UsageError& e) {
    return {WithFlags(e.what()), kExitUsage};
  } catch (const Error& e) {
    return {WithFlags(e.what()), kExitInput};
  } catch (const std::bad_alloc&) {
    return {"out of memory; use fewer ranks or micro-batches, or a smaller file", kExitInput};
  } catch (const InternalError& e) {
    return {e.what(), kExitBug};
  } catch (const std::exception& e) {
    return {bug + e.what() + report, kExitBug};
  } catch (...) {
    return {bug + "unknown exception" + report, kExitBug};
  }
}

}  // namespace

ExitError ExitErrorOf(const std::exception_ptr& error) {
  ExitError words = WordsOf(error);
  words.text = Legible(words.text);
  return words;
}

namespace {

void Complain(std::string_view program, const ExitError& error) {
  std::string line = std::string(program) + ": error: " + error.text;
  if (const std::optional<int> width = TerminalWidth(STDERR_FILENO)) line = Wrapped(line, *width);
  line += '\n';
  // A reader who has stopped keeps no program from its end.
  pollfd room{STDERR_FILENO, POLLOUT, 0};
  if (poll(&room, 1, 2000) != 0) std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

int RunMain(std::string_view program, const std::function<int()>& body) {
  try {
    return body();
  } catch (...) {
    const ExitError error = ExitErrorOf(std::current_exception());
    Complain(program, error);
    return error.code;
  }
}

int RunMain(std::string_view program, int argc, char** argv,
            const std::function<int(const std::vector<std::string>& words)>& body) {
  // A reader that closes its pipe (head, less) ends us quietly, also where the parent ignores it.
  std::signal(SIGPIPE, SIG_DFL);
  // Writing more than `ulimit -f` allows is an error like a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  // Name for an end without a chance to clean up, such as no memory where nothing may throw.
  static std::string_view name;
  name = program;
  std::set_terminate([] { EndAtOnce(name, std::current_exception()); });
  const auto run = [&] {
    const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
    KeepBrokenNames(words);
    return body(words);
  };
  return RunMain(program, std::cref(run));  // a copy would be made before there is a handler
}

void EndAtOnce(std::string_view program, const std::exception_ptr& error) {
  std::set_terminate(std::abort);  // no second time
  const ExitError what = ExitErrorOf(error);
  RemoveUnfinished();
  std::fflush(stdout);
  Complain(program, what);
  std::fflush(stderr);
  std::_Exit(what.code);
}

}  // namespace contraflow
