#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "tests/support/sanitized.h"
#include "tests/support/transcript.h"
#include "tools/cli/exit.h"

namespace contraflow::cli_test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> GoldenFiles() {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(CF_TEST_DIR "/golden/cli")) {
    files.push_back(entry.path().string());
  }
  std::ranges::sort(files);
  return files;
}

std::string Run(const std::string& text, TranscriptStyle style) {
  const Transcript transcript =
      style == TranscriptStyle::kReadme ? ParseMarkdown(text) : ParseTranscript(text);
  return ReportDifferences(transcript, RunSteps(transcript, CF_TOOLS_DIR, style), "text", style);
}

/// Files that take long under sanitizers, where the tests of schedules/ run the same.
bool Searches(const std::string& file) {
  return file.ends_with("/auto.txt") || file.ends_with("/compare.txt") ||
         file.ends_with("/overlap.txt") || file.ends_with("/recompute.txt");
}

}  // namespace

TEST_SUITE_BEGIN("cli");

TEST_CASE("every transcript of golden/cli prints what it says") {
  const std::vector<std::string> files = GoldenFiles();
  REQUIRE(files.size() > 10);
  for (const std::string& file : files) {
    CAPTURE(file);
    if (kSanitized && Searches(file)) continue;
    REQUIRE_MESSAGE(file.ends_with(".txt"), "no test reads this file");
    const std::string report = CheckFile(file, CF_TOOLS_DIR, TranscriptStyle::kGolden);
    CHECK_MESSAGE(report.empty(), report);
  }
}

TEST_CASE("every command has a transcript and a help whose example runs") {
  const std::vector<std::string> files = GoldenFiles();
  const Transcript help = ParseTranscript(ReadText(CF_TEST_DIR "/golden/cli/help.txt"));
  REQUIRE(!help.steps.empty());
  const std::string& top = help.steps.front().expected;
  int commands = 0;
  size_t at = top.find("Commands:\n") + 10;
  while (top.compare(at, 2, "  ") == 0) {
    const std::string name = top.substr(at + 2, top.find(' ', at + 2) - at - 2);
    if (name.empty()) {  // the line above goes on
      at = top.find('\n', at) + 1;
      continue;
    }
    CAPTURE(name);
    CHECK(std::ranges::find(files, CF_TEST_DIR "/golden/cli/" + name + ".txt") != files.end());
    const auto shown = std::ranges::find_if(help.steps, [&](const auto& step) {
      return step.command == "contraflow " + name + " --help";
    });
    REQUIRE(shown != help.steps.end());
    const size_t example = shown->expected.find("Example: contraflow ");
    REQUIRE(example != std::string::npos);
    std::string command = shown->expected.substr(
        example + 9, shown->expected.find_last_not_of('\n') + 1 - example - 9);
    // Long ones go on in the next line.
    std::ranges::replace(command, '\n', ' ');
    // An example is to run; how long it searches is for the transcripts.
    if (name == "compare") command += kSanitized ? " --no-auto" : " --budget 50ms -q";
    if (name == "plan") command += " --budget 500ms";
    if (name == "open") command = "BROWSER=true " + command;
    const std::string run =
        "$ contraflow compile --schedule 1f1b --ranks 2 --microbatches 4 -o plan.json\n"
        "$ cp plan.json other.json\n"
        "$ echo 'a text' > text.txt\n"
        "$ cp " CF_TEST_DIR
        "/tools/profile/configs/llama-3.1-8b.json config.json\n"
        "$ contraflow export plan.json --to torch-csv -o schedule.csv\n"
        "$ contraflow simulate plan.json --trace trace.json >/dev/null\n"
        "$ " +
        command + " >/dev/null\n";
    CHECK(Run(run, TranscriptStyle::kGolden) == "");
    ++commands;
    at = top.find('\n', at) + 1;
  }
  CHECK(commands == 19);
}

#ifdef NDEBUG  // debug information has folders
TEST_CASE("no program says in which folder it was built") {
  if (kSanitized) return;  // sanitizers keep the places of the sources
  const std::string sources = fs::path(CF_TEST_DIR).parent_path().string() + "/";
  for (const char* const program : {"/contraflow", "/contraflow-run"}) {
    const std::string path = CF_TOOLS_DIR + std::string(program);
    if (!fs::exists(path)) continue;
    const std::string bytes = ReadText(path);
    const size_t at = bytes.find(sources);
    CHECK_MESSAGE(at == std::string::npos,
                  program << ": " << bytes.c_str() + std::min(at, bytes.size()));
  }
}
#endif

TEST_CASE("the driver sees a wrong line or stream or exit code") {
  CHECK(Run("$ echo one\none\n", TranscriptStyle::kGolden) == "");
  CHECK(Run("$ echo one\ntwo\n", TranscriptStyle::kGolden) ==
        "text:1: $ echo one\n@@ output, line 0\n-two\n+one\n");
  CHECK(Run("$ echo one >&2\none\n", TranscriptStyle::kGolden) != "");
  CHECK(Run("$ echo one >&2\n2> one\n", TranscriptStyle::kGolden) == "");
  CHECK(Run("$ exit 3\n", TranscriptStyle::kGolden) != "");
  CHECK(Run("$ exit 3\n[exit 3]\n", TranscriptStyle::kGolden) == "");
  CHECK(Run("$ printf one\none\n", TranscriptStyle::kGolden) != "");
  CHECK(Run("$ echo one \\\n> two\none two\n", TranscriptStyle::kGolden) == "");
}

TEST_CASE("Markdown: console blocks share a folder and dots stand for any lines") {
  const std::string head = "text\n```sh\n$ exit 1\n```\n```console\n$ seq 5 >five; cat five\n";
  CHECK(Run(head + "1\n...\n5\n```\n", TranscriptStyle::kReadme) == "");
  CHECK(Run(head + "...\n4\n```\n", TranscriptStyle::kReadme) != "");
  CHECK(Run(head + "...\n```\nand\n```console\n$ tail -1 five\n5\n```\n",
            TranscriptStyle::kReadme) == "");
  CHECK(Run("```console\n$ ls nothing 2>/dev/null\n```\n", TranscriptStyle::kReadme) != "");
  CHECK_THROWS_WITH(ParseMarkdown("```console\n$ ls\n"), "line 1: block is not closed");
  CHECK_THROWS_WITH(ParseTranscript("ls\n"), "line 1: text before the first \"$ COMMAND\"");
}

TEST_CASE("what differs is rewritten and nothing else") {
  const std::string text =
      "a\n```console\n$ echo 1\n0\n$ seq 3\n1\n...\n$ echo \\\n> 2\n```\nb\n```console\n$ "
      "false\n```\n";
  const std::string right =
      "a\n```console\n$ echo 1\n1\n$ seq 3\n1\n...\n$ echo \\\n> 2\n2\n```\nb\n```console\n$ "
      "false\n"
      "[exit 1]\n```\n";
  const TranscriptStyle style = TranscriptStyle::kReadme;
  const Transcript transcript = ParseMarkdown(text);
  CHECK(Rewrite(text, transcript, RunSteps(transcript, CF_TOOLS_DIR, style), style) == right);
  CHECK(Run(right, style) == "");
}

TEST_CASE("no exception leaves a tool and each has its exit code") {
  CHECK(RunMain("test", [] { return 3; }) == 3);
  CHECK(RunMain("test", []() -> int { throw Error("wrong input (expected here)"); }) == 1);
  CHECK(RunMain("test", []() -> int { throw UsageError("wrong use (expected here)"); }) == 2);
  CHECK(RunMain("test", []() -> int {
          CF_ASSERT(1 + 1 == 3);
          return 0;
        }) == 70);
  CHECK(RunMain("test", []() -> int { throw std::logic_error("expected here"); }) == 70);
  CHECK(RunMain("test", []() -> int { throw 5; }) == 70);
}

TEST_SUITE_END();

}  // namespace contraflow::cli_test
