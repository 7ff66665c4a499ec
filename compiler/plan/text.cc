#include "compiler/plan/text.h"

#include <algorithm>
#include <cctype>
#include <cstdio>

namespace contraflow {

std::string Plain(std::string_view name) {
  std::string plain;
  for (const unsigned char c : name) {
    if (std::isalnum(c) != 0) plain += static_cast<char>(std::tolower(c));
  }
  return plain;
}

std::string FormatPercent(double ratio) {
  // A ratio above 0 does not read as 0: a gap of 0 is a proof.
  if (ratio > 0 && ratio < 0.00005) return "<0.01 %";
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.2f %%", 100 * ratio);
  return buffer;
}

std::string FormatCount(int64_t count) {
  std::string text = std::to_string(count);
  const int first = count < 0 ? 1 : 0;
  for (int at = static_cast<int>(text.size()) - 3; at > first; at -= 3) {
    text.insert(static_cast<size_t>(at), ",");
  }
  return text;
}

std::string FormatBytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "kB", "MB", "GB", "TB", "PB", "EB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  // A figure that would be rounded to 1000 is one of the next.
  while (value >= 999.5) value /= 1000, ++unit;
  char buffer[64];
  const int digits = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  std::snprintf(buffer, sizeof buffer, "%.*f %s", digits, value, kUnits[unit]);
  return buffer;
}

size_t SymbolBytes(std::string_view text) {
  if (text.empty()) return 0;
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  const auto second = static_cast<unsigned char>(text[1]);
  // The second byte alone decides overlong forms, surrogates and what lies above U+10FFFF.
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (second < low || second > high) return 0;
  for (size_t k = 2; k < length; ++k) {
    if ((static_cast<unsigned char>(text[k]) & 0xC0) != 0x80) return 0;
  }
  return length;
}

std::string EscapedSymbol(std::string_view symbol) {
  if (symbol == "\n") return "\\n";
  if (symbol == "\t") return "\\t";
  auto code = static_cast<uint32_t>(static_cast<unsigned char>(symbol[0]));
  if (code >= 0x20 && code < 0x7F) return "";
  if (symbol.size() > 1) code &= 0x7Fu >> symbol.size();
  for (const char c : symbol.substr(1)) code = code << 6 | (static_cast<unsigned char>(c) & 0x3F);
  const auto within = [code](uint32_t first, uint32_t last) {
    return code >= first && code <= last;
  };
  const bool control = code < 0x20 || within(0x7F, 0x9F);
  const bool mark =
      code == 0x61C || within(0x200E, 0x200F) || within(0x2028, 0x202E) || within(0x2066, 0x2069);
  const bool none = within(0xFDD0, 0xFDEF) || (code & 0xFFFE) == 0xFFFE;
  if (!control && !mark && !none) return "";
  char buffer[16];
  if (code < 0x10000) {
    std::snprintf(buffer, sizeof buffer, "\\u%04x", code);
  } else {
    // A pair of surrogates.
    std::snprintf(buffer, sizeof buffer, "\\u%04x\\u%04x", 0xD7C0 + (code >> 10),
                  0xDC00 + (code & 0x3FF));
  }
  return buffer;
}

std::string PlainText(std::string_view text) {
  std::string plain;
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = SymbolBytes(text.substr(at));
    const std::string_view symbol = text.substr(at, std::max<size_t>(bytes, 1));
    at += symbol.size();
    if (bytes == 0) {
      char buffer[8];
      std::snprintf(buffer, sizeof buffer, "\\x%02x", static_cast<unsigned char>(symbol[0]));
      plain += buffer;
      continue;
    }
    const std::string escaped = symbol == "\n" ? "" : EscapedSymbol(symbol);
    plain += escaped.empty() ? symbol : std::string_view(escaped);
  }
  return plain;
}

std::string PlainLine(std::string_view text) {
  std::string plain = PlainText(text);
  for (size_t at = 0; (at = plain.find('\n', at)) != std::string::npos;) {
    plain.replace(at, 1, "\\n");
  }
  return plain;
}

std::string ShellWord(std::string_view text) {
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./,-";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos) {
    return std::string(text);
  }
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

}  // namespace contraflow
