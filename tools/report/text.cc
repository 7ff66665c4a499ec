#include "tools/report/text.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

// E. Myers, "An O(ND) difference algorithm and its variations", Algorithmica 1, 1986.

namespace contraflow {

namespace {

using Row = std::vector<std::string>;

/// The columns of each part of a table: as many as the width has room for after the first.
std::vector<std::vector<size_t>> Parts(const std::vector<int>& widths, std::optional<int> width) {
  std::vector<std::vector<size_t>> parts(1);
  int used = 0;
  for (size_t i = 0; i < widths.size(); ++i) {
    if (width && parts.back().size() > 1 && used + 2 + widths[i] > *width) {
      parts.push_back({0});
      used = widths[0];
    }
    parts.back().push_back(i);
    used += widths[i] + (i > 0 ? 2 : 0);
  }
  return parts;
}

}  // namespace

std::string FormatTable(const Table& table, std::optional<int> width) {
  std::vector<bool> right;
  Row heading;
  for (const std::string& column : table.columns) {
    right.push_back(column.starts_with(">"));
    heading.push_back(column.substr(right.back() ? 1 : 0));
  }
  const bool headed = !std::ranges::all_of(heading, &std::string::empty);
  std::vector<const Row*> lines;
  if (headed) lines.push_back(&heading);
  for (const Row& row : table.rows) lines.push_back(&row);
  std::vector<int> widths(heading.size(), 0);
  for (const Row* line : lines) {
    for (size_t i = 0; i < line->size(); ++i) {
      widths[i] = std::max(widths[i], TextWidth((*line)[i]));
    }
  }
  std::string out;
  for (const std::vector<size_t>& part : Parts(widths, width)) {
    if (!out.empty()) out += "\n";
    for (const Row* line : lines) {
      std::string text;
      for (const size_t i : part) {
        const std::string cell = i < line->size() ? (*line)[i] : "";
        const std::string pad(static_cast<size_t>(widths[i] - TextWidth(cell)), ' ');
        text += (text.empty() && i == 0 ? "" : "  ") + (right[i] ? pad + cell : cell + pad);
      }
      text.erase(text.find_last_not_of(' ') + 1);
      out += text + "\n";
    }
  }
  return out;
}

std::string FormatHtml(const Table& table) {
  std::string html = "<table>";
  const auto add = [&](const Row& row, const std::string& tag) {
    html += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      const bool right = table.columns[i].starts_with(">");
      html += "<" + tag + (right ? " style=\"text-align: right\"" : "") + ">" +
              EscapeMarkup(row[i].substr(tag == "th" && right ? 1 : 0)) + "</" + tag + ">";
    }
    html += "</tr>\n";
  };
  add(table.columns, "th");
  for (const Row& row : table.rows) add(row, "td");
  return html + "</table>";
}

std::string EscapeMarkup(std::string_view text) {
  std::string out;
  for (const char c : PlainText(text)) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

namespace {

using Strings = std::vector<std::string>;

/// One line of the result: ' ' in both, '-' only left, '+' only right.
struct Line {
  char mark;
  const std::string* text;
  int at;  // where it stands in the left list
};

/// More edits than this are not worth the memory of finding the fewest.
constexpr int kMaxEdits = 2000;

/// Furthest x on each diagonal after d edits, for d = 0, 1, ...; the last reaches the end. Empty if
/// that takes too many edits.
std::vector<std::vector<int>> FurthestPoints(const Strings& left, const Strings& right, int skip,
                                             int n, int m) {
  std::vector<std::vector<int>> trace;
  std::vector<int> before = {0};
  const auto same = [&](int x, int y) {
    return left[static_cast<size_t>(skip + x)] == right[static_cast<size_t>(skip + y)];
  };
  for (int d = 0; d <= std::min(n + m, kMaxEdits); ++d) {
    // Entry d + k is diagonal k = x - y in -d..d.
    std::vector<int> reach(static_cast<size_t>(2 * d + 1), 0);
    for (int k = -d; k <= d; k += 2) {
      int x = 0;
      if (d > 0) {
        const auto previous = [&](int diagonal) {
          return before[static_cast<size_t>(d - 1 + diagonal)];
        };
        const bool down = k == -d || (k != d && previous(k - 1) < previous(k + 1));
        x = down ? previous(k + 1) : previous(k - 1) + 1;
      }
      while (x < n && x - k < m && same(x, x - k)) ++x;
      reach[static_cast<size_t>(d + k)] = x;
      if (x >= n && x - k >= m) {
        trace.push_back(std::move(reach));
        return trace;
      }
    }
    trace.push_back(reach);
    before = std::move(reach);
  }
  return {};
}

/// The lines of the middle that the common beginning (`skip`) and end leave.
std::vector<Line> Middle(const Strings& left, const Strings& right, int skip, int n, int m) {
  const auto from_left = [&](char mark, int x) {
    return Line{mark, &left[static_cast<size_t>(skip + x)], skip + x};
  };
  const auto from_right = [&](int x, int y) {
    return Line{'+', &right[static_cast<size_t>(skip + y)], skip + x};
  };
  std::vector<Line> lines;
  const std::vector<std::vector<int>> trace = FurthestPoints(left, right, skip, n, m);
  if (trace.empty()) {
    for (int x = 0; x < n; ++x) lines.push_back(from_left('-', x));
    for (int y = 0; y < m; ++y) lines.push_back(from_right(n, y));
    return lines;
  }
  int x = n, y = m;
  for (int d = static_cast<int>(trace.size()) - 1; d > 0; --d) {
    const std::vector<int>& before = trace[static_cast<size_t>(d - 1)];
    const auto previous = [&](int diagonal) {
      return before[static_cast<size_t>(d - 1 + diagonal)];
    };
    const int k = x - y;
    const bool down = k == -d || (k != d && previous(k - 1) < previous(k + 1));
    const int start_x = down ? previous(k + 1) : previous(k - 1) + 1;
    for (; x > start_x; --x, --y) lines.push_back(from_left(' ', x - 1));
    if (down) {
      lines.push_back(from_right(x, --y));
    } else {
      lines.push_back(from_left('-', --x));
    }
  }
  for (; x > 0; --x) lines.push_back(from_left(' ', x - 1));
  std::reverse(lines.begin(), lines.end());
  return lines;
}

std::vector<Line> AllLines(const Strings& left, const Strings& right) {
  const auto n = static_cast<int>(left.size()), m = static_cast<int>(right.size());
  int begin = 0, end = 0;
  const auto at = [](const Strings& list, int i) -> const std::string& {
    return list[static_cast<size_t>(i)];
  };
  while (begin < std::min(n, m) && at(left, begin) == at(right, begin)) ++begin;
  while (end < std::min(n, m) - begin && at(left, n - 1 - end) == at(right, m - 1 - end)) ++end;
  std::vector<Line> lines;
  for (int i = 0; i < begin; ++i) lines.push_back({' ', &at(left, i), i});
  const std::vector<Line> middle = Middle(left, right, begin, n - begin - end, m - begin - end);
  lines.insert(lines.end(), middle.begin(), middle.end());
  for (int i = n - end; i < n; ++i) lines.push_back({' ', &at(left, i), i});
  return lines;
}

}  // namespace

std::string FormatChange(int64_t was, int64_t is) {
  if (was == 0 || was == is) return "";
  const double ratio = static_cast<double>(is - was) / static_cast<double>(was);
  return (ratio < 0 ? "-" : "+") + FormatPercent(std::abs(ratio));
}

std::string FormatEdits(const Strings& left, const Strings& right, const std::string& title) {
  constexpr int kContext = 2;
  const std::vector<Line> lines = AllLines(left, right);
  const auto count = static_cast<int>(lines.size());
  std::vector<bool> shown(lines.size(), false);
  for (int i = 0; i < count; ++i) {
    if (lines[static_cast<size_t>(i)].mark == ' ') continue;
    for (int j = std::max(0, i - kContext); j <= std::min(count - 1, i + kContext); ++j) {
      shown[static_cast<size_t>(j)] = true;
    }
  }
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!shown[i]) continue;
    if (i == 0 || !shown[i - 1]) {
      out += "@@ " + title + " " + std::to_string(lines[i].at) + "\n";
    }
    out += lines[i].mark + *lines[i].text + "\n";
  }
  return out;
}

}  // namespace contraflow
