#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace contraflow {

/// An option that takes a whole number. Text that is none, or does not fit the field, is a usage
/// error.
CLI::Option* AddInteger(CLI::App* app, const std::string& name, int* field, const std::string& noun,
                        const std::string& help);
CLI::Option* AddInteger(CLI::App* app, const std::string& name, std::optional<int64_t>* field,
                        const std::string& noun, const std::string& help);

/// An option that takes a decimal number; "nan" and "inf" are read and left to the caller to
/// refuse.
CLI::Option* AddNumber(CLI::App* app, const std::string& name, std::optional<double>* field,
                       const std::string& noun, const std::string& help);

/// An option that takes any text but none at all, as an unset variable of a shell is.
CLI::Option* AddText(CLI::App* app, const std::string& name, std::string* field,
                     const std::string& noun, const std::string& help);

/// An option that takes one of `known`, a list such as "text|grid"; anything else is a usage error.
CLI::Option* AddChoice(CLI::App* app, const std::string& name, std::string* field,
                       const std::string& known, const std::string& help);

/// The positional argument PLAN, `field` gets the path.
CLI::Option* AddPlan(CLI::App* app, std::string* field, const std::string& name = "PLAN");

/// Throws UsageError unless --capacity is a share that experts can take.
void CheckCapacity(double capacity);

/// --json
CLI::Option* AddJson(CLI::App* app, bool* field);

}  // namespace contraflow
