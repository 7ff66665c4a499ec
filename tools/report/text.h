#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/text.h"
#include "compiler/plan/units.h"
#include "tools/cli/terminal.h"

namespace contraflow {

/// Text in aligned columns, two spaces between them, for terminals and files alike.
struct Table {
  /// Heading of each column; one that begins with ">" is aligned to the right.
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  ///< may be shorter than columns
};

/// One line a row, no trailing spaces, below the headings if there are any. Counts code points, so
/// UTF-8 text aligns. Columns that are too many for the width follow below, each time after the
/// first.
std::string FormatTable(const Table& table, std::optional<int> width = OutputWidth());

/// Like FormatTable, as a table of HTML.
std::string FormatHtml(const Table& table);

/// Text for XML, SVG and HTML: plain, with & < > and quotes as entities.
std::string EscapeMarkup(std::string_view text);

/// "+6.25 %"; "" where there is no change, or nothing to measure it by.
std::string FormatChange(int64_t was, int64_t is);

/// The fewest deletions and insertions that turn `left` into `right`, as a unified diff under a
/// line "@@ TITLE N", N being the index in `left`: two lines of context around each change. ""
/// where both are equal. If the lists have almost nothing in common, one deletion and one insertion
/// stand for the whole middle.
std::string FormatEdits(const std::vector<std::string>& left, const std::vector<std::string>& right,
                        const std::string& title);

}  // namespace contraflow
