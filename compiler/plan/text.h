#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "compiler/plan/cost.h"

namespace contraflow {

/// "6.67 %"; two digits, so that figures compare at a glance. A ratio above 0 never reads as 0.
std::string FormatPercent(double ratio);

/// Small letters and digits alone, for names that have several spellings.
std::string Plain(std::string_view name);

/// "1,234,567"
std::string FormatCount(int64_t count);

/// In the unit that fits, to four digits: "4.02 s", "326 ms". In the abstract unit to five, but
/// never less than whole units: "66 units", "1107.4 units".
std::string FormatWithUnit(Time ticks, Unit unit);

/// For people, to three digits: "512 bytes", "22.3 GB".
std::string FormatBytes(int64_t bytes);

/// Bytes of the symbol that UTF-8 text begins with; 0 where it begins with none (no surrogates, no
/// overlong forms).
size_t SymbolBytes(std::string_view text);

/// The JSON escape of a symbol that text must not show: a control, which could steer a terminal, a
/// bidirectional mark or a line separator, or a noncharacter, which XML has not; "" for all others.
std::string EscapedSymbol(std::string_view symbol);

/// Text of a file, a peer or a command line, as it may leave the program: such symbols become
/// `\u001b`, and bytes that are no UTF-8 `\xff`. New lines stay.
std::string PlainText(std::string_view text);
/// Like PlainText, of a name or a path, on one line.
std::string PlainLine(std::string_view text);

/// A word of a shell's command line, in single quotes where it needs them.
std::string ShellWord(std::string_view text);

}  // namespace contraflow
