#include "tools/cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "compiler/files/file.h"
#include "compiler/plan/text.h"

namespace contraflow {
namespace {

constexpr int kLeastWidth = 40;
constexpr int kHelpWidth = 80, kMostHelpWidth = 100;
/// Labels are shorter.
constexpr size_t kMostLabel = 24;

/// Column at which the lines begin that a line goes on in.
size_t IndentOf(std::string_view line) {
  const size_t begin = std::min(line.find_first_not_of(' '), line.size());
  const size_t gap = line.find("  ", begin);
  if (gap < kMostLabel) {
    const size_t behind = line.find_first_not_of(' ', gap);
    if (behind < kMostLabel) return behind;
  }
  return begin + 2;
}

void WrapLine(std::string line, int width, std::string* out) {
  if (line.find('\x1b') != std::string::npos) width = INT_MAX;  // columns that are none
  const std::string indent(IndentOf(line), ' ');
  while (TextWidth(line) > width) {
    // The last space that leaves no more than the width before it.
    size_t at = std::string::npos;
    int columns = 0;
    for (size_t k = 0; k < line.size() && columns <= width; ++k) {
      if (line[k] == ' ' && k > indent.size()) at = k;
      columns += (line[k] & 0xC0) != 0x80;
    }
    if (at == std::string::npos) at = line.find(' ', indent.size() + 1);
    if (at == std::string::npos) break;
    const size_t next = line.find_first_not_of(' ', at);
    if (next == std::string::npos) break;
    out->append(line, 0, line.find_last_not_of(' ', at) + 1);
    *out += '\n';
    line = indent + line.substr(next);
  }
  *out += line;
}

}  // namespace

std::optional<int> TerminalWidth(int fd) {
  winsize size = {};
  if (isatty(fd) != 1 || ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
  return std::max<int>(size.ws_col, kLeastWidth);
}

std::optional<int> OutputWidth() {
  if (const std::optional<int> width = TerminalWidth(STDOUT_FILENO)) return width;
  const char* const columns = std::getenv("COLUMNS");
  if (columns == nullptr) return std::nullopt;
  const std::string_view text = columns;
  int width = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), width);
  if (error != std::errc() || end != text.data() + text.size() || width < 1) return std::nullopt;
  return std::max(width, kLeastWidth);
}

int HelpWidth() { return std::min(OutputWidth().value_or(kHelpWidth), kMostHelpWidth); }

int TextWidth(const std::string& text) {
  // Continuation bytes are 10xxxxxx.
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string Wrapped(const std::string& text, int width) {
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    WrapLine(text.substr(begin, end - begin), width, &out);
    if (end < text.size()) out += '\n';
    begin = end + 1;
  }
  return out;
}

namespace {
Verbosity chosen = Verbosity::kUsual;
std::vector<std::string> broken_names;
}  // namespace

void KeepBrokenNames(std::span<const std::string> words) {
  for (std::string_view rest : words) {
    while (rest.find('\n') != std::string_view::npos) {
      const std::string_view part = rest.substr(0, rest.find_first_of("/="));
      rest.remove_prefix(std::min(part.size() + 1, rest.size()));
      if (part.find('\n') != std::string_view::npos) broken_names.emplace_back(part);
    }
  }
}

std::string Legible(std::string text) {
  for (const std::string& name : broken_names) {
    const std::string line = PlainLine(name);
    for (size_t at = 0; (at = text.find(name, at)) != std::string::npos; at += line.size()) {
      text.replace(at, name.size(), line);
    }
  }
  return PlainText(text);
}

void Print(const std::string& text) {
  const std::optional<int> width = OutputWidth();
  WriteFile("-", width ? Wrapped(Legible(text), *width) : Legible(text));
}

void SetVerbosity(Verbosity verbosity) { chosen = verbosity; }

Verbosity GetVerbosity() { return chosen; }

void Say(const std::string& line) {
  if (chosen == Verbosity::kQuiet) return;
  const std::optional<int> width = TerminalWidth(STDERR_FILENO);
  const std::string text = Legible(line);
  std::fprintf(stderr, "%s\n", (width ? Wrapped(text, *width) : text).c_str());
}

bool SaysWhatWasDone() {
  return chosen == Verbosity::kVerbose ||
         (chosen == Verbosity::kUsual && isatty(STDERR_FILENO) == 1);
}

}  // namespace contraflow
