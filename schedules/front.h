#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "schedules/compare.h"

namespace contraflow {

/// A way to run a model: how long a step takes, and what the fullest rank holds.
struct FrontPoint {
  CompareRow row;
  /// Bytes of all that the fullest rank holds or, where the costs do not say what activations take,
  /// the most activations of a whole rank's layers.
  double memory = 0;
  std::string memory_limit = {};              ///< that `auto` was given, as "0.5x"; "" for none
  std::optional<int64_t> device_memory = {};  ///< device memory of `auto`, if given
};

/// The ways to run the model of a request of which none is both shorter and smaller: of all
/// published schedules and of `auto` at limits from 0.25x to 2x (within the request's own), then at
/// up to eight more, each in the middle of the two points between which the front drops most: of
/// activations or, where the costs give bytes, of all that a rank holds. With recompute where the
/// costs say what that holds, and for `auto` with offloading where they have a link to the host.
/// Points by memory, the smallest first. All searches of `auto` share the request's budget. Calls
/// `started` with what comes next.
std::vector<FrontPoint> ParetoFront(const CompareRequest& request,
                                    const std::function<void(std::string_view)>& started = {});

/// Step if one cost were a tenth lower, or the memory a tenth more.
struct Variation {
  std::string name;  ///< "f" "b" "w" "comm" "all-to-all" "memory"
  CompareRow row;    ///< the shortest that then fits
  double gain = 0;   ///< by how much that is shorter than the shortest now, as a ratio
};

/// "f" "b" "w" "all-to-all" "comm" "memory"
std::vector<std::string> VariedNames();

/// Variations of these (VariedNames; of all that the request has, for none), the one that helps
/// most first. `now` is the shortest row of the request as it is. Throws Error for one that the
/// request has nothing of.
std::vector<Variation> Vary(const CompareRequest& request, const CompareRow& now,
                            const std::vector<std::string>& names,
                            const std::function<void(std::string_view)>& started = {});

/// The shortest of the rows that fit; null where none does.
const CompareRow* Shortest(std::span<const CompareRow> rows);

}  // namespace contraflow
