#include "tools/contraflow/table.h"

#include <algorithm>

namespace contraflow {

std::string FormatTable(const Table& table) {
  std::vector<bool> right;
  std::vector<std::string> heading;
  for (const std::string& column : table.columns) {
    right.push_back(column.starts_with(">"));
    heading.push_back(column.substr(right.back() ? 1 : 0));
  }
  std::vector<std::vector<std::string>> lines = {heading};
  lines.insert(lines.end(), table.rows.begin(), table.rows.end());
  std::vector<int> width(heading.size(), 0);
  for (const std::vector<std::string>& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) width[i] = std::max(width[i], TextWidth(line[i]));
  }
  std::string out;
  for (const std::vector<std::string>& line : lines) {
    std::string text;
    for (size_t i = 0; i < line.size(); ++i) {
      const std::string pad(static_cast<size_t>(width[i] - TextWidth(line[i])), ' ');
      text += (i > 0 ? "  " : "") + (right[i] ? pad + line[i] : line[i] + pad);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  }
  return out;
}

int TextWidth(const std::string& text) {
  // Continuation bytes are 10xxxxxx.
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace contraflow
