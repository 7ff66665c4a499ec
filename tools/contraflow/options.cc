#include "tools/contraflow/options.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <string_view>
#include <vector>

#include "compiler/plan/error.h"
#include "tools/contraflow/exit.h"

namespace contraflow {
namespace {

std::string Quoted(const std::string& text) { return "\"" + text.substr(0, 64) + "\""; }

int64_t ReadInteger(const std::string& name, const std::string& text, int64_t low, int64_t high) {
  const char* const end = text.data() + text.size();
  int64_t value = 0;
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (at != end || error == std::errc::invalid_argument) {
    throw CLI::ValidationError(name, "must be a whole number, is " + Quoted(text));
  }
  if (error != std::errc() || value < low || value > high) {
    const bool negative = text[0] == '-';
    throw UsageError(name + ": " + text.substr(0, 64) + " is too " +
                     (negative ? "small" : "large") + ", the limit is " +
                     std::to_string(negative ? low : high));
  }
  return value;
}

CLI::Option* AddReader(CLI::App* app, const std::string& name, const std::string& noun,
                       const std::string& help,
                       const std::function<void(const std::string&)>& set) {
  return app->add_option_function<std::string>(name, set, help)->type_name(noun);
}

std::vector<std::string> Split(const std::string& list) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find('|', begin), list.size());
    words.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

}  // namespace

CLI::Option* AddInteger(CLI::App* app, const std::string& name, int* field, const std::string& noun,
                        const std::string& help) {
  using Limits = std::numeric_limits<int>;
  return AddReader(app, name, noun, help, [=](const std::string& text) {
    *field = static_cast<int>(ReadInteger(name, text, Limits::min(), Limits::max()));
  });
}

CLI::Option* AddInteger(CLI::App* app, const std::string& name, std::optional<int64_t>* field,
                        const std::string& noun, const std::string& help) {
  return AddReader(app, name, noun, help, [=](const std::string& text) {
    *field = ReadInteger(name, text, 0, std::numeric_limits<int64_t>::max());
  });
}

CLI::Option* AddNumber(CLI::App* app, const std::string& name, std::optional<double>* field,
                       const std::string& noun, const std::string& help) {
  return AddReader(app, name, noun, help, [=](const std::string& text) {
    const char* const end = text.data() + text.size();
    double value = 0;
    const auto [at, error] = std::from_chars(text.data(), end, value);
    if (at != end || error == std::errc::invalid_argument) {
      throw CLI::ValidationError(name, "must be a number, is " + Quoted(text));
    }
    if (error != std::errc()) {
      throw UsageError(name + ": " + text.substr(0, 64) + " is out of range");
    }
    *field = value;
  });
}

CLI::Option* AddText(CLI::App* app, const std::string& name, std::string* field,
                     const std::string& noun, const std::string& help) {
  return AddReader(app, name, noun, help, [=](const std::string& text) {
    if (text.empty()) throw CLI::ValidationError(name, "needs a value, is \"\"");
    *field = text;
  });
}

CLI::Option* AddChoice(CLI::App* app, const std::string& name, std::string* field,
                       const std::string& known, const std::string& help) {
  return AddReader(app, name, known, help, [=](const std::string& text) {
    const std::vector<std::string> names = Split(known);
    for (const std::string& candidate : names) {
      if (candidate == text) {
        *field = text;
        return;
      }
    }
    throw CLI::ValidationError(
        name, "must be " + known + ", is " + Quoted(text) + DidYouMean(text.substr(0, 64), names));
  });
}

CLI::Option* AddPlan(CLI::App* app, std::string* field, const std::string& name) {
  return app->add_option(name, *field, "plan file or folder; - is standard input")
      ->type_name("FILE")
      ->required();
}

void CheckCapacity(double capacity) {
  constexpr double kMost = 1e6;
  if (capacity > 0 && capacity <= kMost) return;
  throw UsageError(
      "--capacity: must be above 0 and at most 1000000, as in 1.25; leave it out for the model's "
      "own, which by default serves every token");
}

CLI::Option* AddJson(CLI::App* app, bool* field) {
  return app->add_flag("--json", *field, "one JSON document on stdout and nothing else");
}

}  // namespace contraflow
