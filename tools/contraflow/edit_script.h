#pragma once

#include <string>
#include <vector>

namespace contraflow {

/// The fewest deletions and insertions that turn `left` into `right`, as a unified diff under a
/// line
/// "@@ TITLE N", N being the index in `left`: two lines of context around each change. "" where
/// both are equal. Where the lists have almost nothing in common, one deletion and one insertion
/// stand for the whole middle.
std::string FormatEdits(const std::vector<std::string>& left, const std::vector<std::string>& right,
                        const std::string& title);

}  // namespace contraflow
