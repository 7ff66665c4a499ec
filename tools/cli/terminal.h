#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace contraflow {

/// Columns of standard output: those of its terminal, else $COLUMNS. No value means no limit.
std::optional<int> OutputWidth();

/// Columns of the terminal that this descriptor is; nothing if it is none.
std::optional<int> TerminalWidth(int fd);

/// Columns of text that is laid out anew, such as --help: OutputWidth, else 80.
int HelpWidth();

/// Code points of UTF-8 text.
int TextWidth(const std::string& text);

/// Text with lines of at most `width` columns: longer ones are broken at spaces, and go on below
/// where they begin or, after a label ("makespan  4 s, .."), below that.
std::string Wrapped(const std::string& text, int width);

/// Keeps parts of these words, between "/" and "=", that have new lines: the paths that a shell
/// gave. Called once, before anything is said.
void KeepBrokenNames(std::span<const std::string> words);
/// Text for people as PlainText has it; names that were kept stay on their line, too.
std::string Legible(std::string text);

/// Writes text for people to standard output, legible, as wide as that is.
void Print(const std::string& text);

/// Output on stderr in addition to errors: none; warnings, notes and progress on a terminal; the
/// same everywhere. The command line sets it, -q or -v, before anything is said.
enum class Verbosity : uint8_t { kQuiet, kUsual, kVerbose };
void SetVerbosity(Verbosity verbosity);
Verbosity GetVerbosity();

/// A line on standard error, legible, unless quiet; on a terminal broken as Wrapped does.
void Say(const std::string& line);

/// True if commands report finished work without being asked: on a terminal, or verbose.
bool SaysWhatWasDone();

}  // namespace contraflow
