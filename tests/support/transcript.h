#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace contraflow {

/// One command of a transcript and what it must print.
struct TranscriptStep {
  std::string command;
  std::string expected;  ///< the lines below it, up to the next command or the end
  int line = 0;          ///< of the command in its file, from 1
};

/// How output is compared.
enum class TranscriptStyle {
  kGolden,  ///< byte for byte; stderr lines come last, each after "2> "
  kReadme,  ///< stdout and stderr as they come; a line "..." stands for any lines, none too
};

/// The steps of a golden file: "$ COMMAND", its output, "[exit N]" where the exit code is not 0.
/// A command that ends in "\" continues after "> " in the next line. Lines before the first command
/// that begin with "#" are comments.
struct Transcript {
  std::vector<TranscriptStep> steps;
};

/// Throws std::runtime_error naming the line where the text is no transcript.
Transcript ParseTranscript(std::string_view text);

/// The steps of all ```console blocks of a Markdown file, in order, as one transcript.
Transcript ParseMarkdown(std::string_view text);

/// Output of a step, in the form of `expected`. Runs in `folder` with `bin` first on PATH.
std::string RunStep(const TranscriptStep& step, const std::string& folder, const std::string& bin,
                    TranscriptStyle style);

/// True if the output is what the step expects.
bool Matches(const std::string& expected, const std::string& actual, TranscriptStyle style);

/// Runs all steps in one fresh folder; the output of each.
std::vector<std::string> RunSteps(const Transcript& transcript, const std::string& bin,
                                  TranscriptStyle style);

/// "" or a report: each step whose output is not what it expects, with a line-by-line comparison.
std::string ReportDifferences(const Transcript& transcript, const std::vector<std::string>& outputs,
                              const std::string& name, TranscriptStyle style);

/// `text`, from which the transcript was read, with what each step that differs really printed.
std::string Rewrite(std::string_view text, const Transcript& transcript,
                    const std::vector<std::string>& outputs, TranscriptStyle style);

/// Runs a transcript or Markdown file and returns the report on it. With CF_BLESS=1 in the
/// environment rewrites the file instead.
std::string CheckFile(const std::string& path, const std::string& bin, TranscriptStyle style);

/// Compares `actual` with the golden file and returns "" or how they differ. With CF_BLESS=1 in the
/// environment writes the file instead.
std::string CompareGolden(const std::string& path, const std::string& actual);

/// True if CF_BLESS=1: goldens are rewritten.
bool Blessing();

/// The lines of both texts, "-" expected only, "+" actual only, around the differences.
std::string DiffText(const std::string& expected, const std::string& actual);

/// Whole file. Throws std::runtime_error.
std::string ReadText(const std::string& path);

}  // namespace contraflow
