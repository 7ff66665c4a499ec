#include "tests/support/transcript.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "tests/support/mpirun_ports.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> SplitLines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

/// A folder of its own for one transcript, removed with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "contraflow-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string Quote(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

/// "2> " before every line.
std::string MarkErrors(const std::string& text) {
  std::string out;
  for (const std::string& line : SplitLines(text)) out += "2> " + line + "\n";
  return out;
}

/// Text that does not end a line would run into what follows.
std::string EndLine(std::string text) {
  if (!text.empty() && text.back() != '\n') text += "\n[no newline at the end]\n";
  return text;
}

void WriteText(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

/// Matches lines where "..." stands for any number of them.
bool MatchLines(const std::vector<std::string>& pattern, size_t p,
                const std::vector<std::string>& lines, size_t l) {
  for (; p < pattern.size(); ++p, ++l) {
    if (pattern[p] == "...") {
      for (size_t skip = l; skip <= lines.size(); ++skip) {
        if (MatchLines(pattern, p + 1, lines, skip)) return true;
      }
      return false;
    }
    if (l >= lines.size() || pattern[p] != lines[l]) return false;
  }
  return l == lines.size();
}

}  // namespace

Transcript ParseTranscript(std::string_view text) {
  Transcript transcript;
  bool open = false;  // the command continues in the next line
  int number = 0;
  for (const std::string& line : SplitLines(text)) {
    ++number;
    if (open) {
      if (!line.starts_with("> ")) {
        throw std::runtime_error("line " + std::to_string(number) +
                                 ": a command that ends in \"\\\" continues after \"> \"");
      }
      transcript.steps.back().command += "\n" + line.substr(2);
      open = line.ends_with("\\");
    } else if (line.starts_with("$ ")) {
      transcript.steps.push_back({line.substr(2), "", number});
      open = line.ends_with("\\");
    } else if (!transcript.steps.empty()) {
      transcript.steps.back().expected += line + "\n";
    } else if (!line.empty() && !line.starts_with("#")) {
      throw std::runtime_error("line " + std::to_string(number) +
                               ": text before the first \"$ COMMAND\"");
    }
  }
  return transcript;
}

Transcript ParseMarkdown(std::string_view text) {
  Transcript all;
  std::string block;
  bool inside = false;
  int number = 0, begin = 0;
  for (const std::string& line : SplitLines(text)) {
    ++number;
    if (!inside && line == "```console") {
      inside = true;
      begin = number;
      block.clear();
    } else if (inside && line == "```") {
      inside = false;
      for (TranscriptStep& step : ParseTranscript(block).steps) {
        step.line += begin;
        all.steps.push_back(std::move(step));
      }
    } else if (inside) {
      block += line + "\n";
    }
  }
  if (inside) throw std::runtime_error("line " + std::to_string(begin) + ": block is not closed");
  return all;
}

std::string RunStep(const TranscriptStep& step, const std::string& folder, const std::string& bin,
                    TranscriptStyle style) {
  const TemporaryFolder capture;
  const std::string out = capture.path() + "/out", err = capture.path() + "/err";
  WriteText(capture.path() + "/command", step.command + "\n");
  const bool apart = style == TranscriptStyle::kGolden;
  const std::string command = "cd " + Quote(folder) + " && PATH=" + Quote(bin) +
                              ":\"$PATH\" LC_ALL=C sh " + Quote(capture.path() + "/command") +
                              " >" + Quote(out) + " 2>" + (apart ? Quote(err) : "&1") +
                              " </dev/null";
  // The environment of whoever runs the tests must not show in what the tools print.
  for (const char* const name : {"CONTRAFLOW_PROFILES", "NO_COLOR", "COLUMNS"}) unsetenv(name);
  // In a container the tests are run by root, which mpirun warns of.
  for (const char* const name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}) {
    setenv(name, "1", 1);
  }
  for (const char* const name :
       {"OMPI_MCA_oob_tcp_dynamic_ipv4_ports", "OMPI_MCA_oob_tcp_dynamic_ipv6_ports"}) {
    setenv(name, MpirunPorts(getpid(), 21'000).c_str(), 1);
  }
  const int status = std::system(command.c_str());
  std::string text = EndLine(ReadText(out));
  if (apart) text += MarkErrors(EndLine(ReadText(err)));
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code != 0) text += "[exit " + std::to_string(code) + "]\n";
  return text;
}

bool Matches(const std::string& expected, const std::string& actual, TranscriptStyle style) {
  if (style == TranscriptStyle::kGolden) return expected == actual;
  std::vector<std::string> pattern = SplitLines(expected), lines = SplitLines(actual);
  // A block may have empty lines between its commands.
  while (!pattern.empty() && pattern.back().empty()) pattern.pop_back();
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  return MatchLines(pattern, 0, lines, 0);
}

std::string DiffText(const std::string& expected, const std::string& actual) {
  return FormatEdits(SplitLines(expected), SplitLines(actual), "output, line");
}

std::vector<std::string> RunSteps(const Transcript& transcript, const std::string& bin,
                                  TranscriptStyle style) {
  const TemporaryFolder folder;
  std::vector<std::string> outputs;
  for (const TranscriptStep& step : transcript.steps) {
    outputs.push_back(RunStep(step, folder.path(), bin, style));
  }
  return outputs;
}

std::string ReportDifferences(const Transcript& transcript, const std::vector<std::string>& outputs,
                              const std::string& name, TranscriptStyle style) {
  std::string report;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const TranscriptStep& step = transcript.steps[i];
    if (Matches(step.expected, outputs[i], style)) continue;
    report += name + ":" + std::to_string(step.line) + ": $ " + step.command + "\n" +
              DiffText(step.expected, outputs[i]);
  }
  return report;
}

std::string Rewrite(std::string_view text, const Transcript& transcript,
                    const std::vector<std::string>& outputs, TranscriptStyle style) {
  const std::vector<std::string> lines = SplitLines(text);
  std::string out;
  size_t at = 0;  // lines taken
  const auto take = [&](size_t end) {
    for (; at < end; ++at) out += lines[at] + "\n";
  };
  for (size_t i = 0; i < outputs.size(); ++i) {
    const TranscriptStep& step = transcript.steps[i];
    if (Matches(step.expected, outputs[i], style)) continue;
    take(static_cast<size_t>(step.line) + SplitLines(step.command).size() - 1);
    out += outputs[i];
    at += SplitLines(step.expected).size();
  }
  take(lines.size());
  return out;
}

std::string CheckFile(const std::string& path, const std::string& bin, TranscriptStyle style) {
  const std::string text = ReadText(path);
  const Transcript transcript =
      style == TranscriptStyle::kReadme ? ParseMarkdown(text) : ParseTranscript(text);
  if (transcript.steps.empty()) throw std::runtime_error(path + ": has no command");
  const std::vector<std::string> outputs = RunSteps(transcript, bin, style);
  if (!Blessing()) return ReportDifferences(transcript, outputs, path, style);
  WriteText(path, Rewrite(text, transcript, outputs, style));
  return "";
}

bool Blessing() {
  const char* const bless = std::getenv("CF_BLESS");
  return bless != nullptr && std::string(bless) == "1";
}

std::string CompareGolden(const std::string& path, const std::string& actual) {
  if (Blessing()) {
    WriteText(path, actual);
    return "";
  }
  std::string expected;
  if (fs::exists(path)) expected = ReadText(path);
  if (fs::exists(path) && expected == actual) return "";
  return path + " differs (if that is right: CF_BLESS=1 and run again)\n" +
         DiffText(expected, actual);
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw std::runtime_error("cannot read " + path);
  return text.str();
}

}  // namespace contraflow
