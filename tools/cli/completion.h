#pragma once

#include <map>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace contraflow {

/// Words that an option takes, by its name, "--schedule", where its help does not list them; if
/// that says FILE, files are offered as well.
using KnownWords = std::map<std::string, std::vector<std::string>>;

/// A script that completes the commands and options of a program in bash. An option that has
/// neither a choice nor known words takes files.
std::string WriteCompletion(const CLI::App& program, const KnownWords& known);

/// The program's manual page (man(7)): its commands and options as --help has them.
std::string WriteManual(const CLI::App& program, const std::string& version);

}  // namespace contraflow
