#pragma once

#include <cstddef>
#include <deque>

namespace contraflow {

/// Messages under way on a wire, by ticket. `Entry` has an `int next`, which links free entries.
/// Entries stay where they are.
template <typename Entry>
class Tickets {
 public:
  /// Makes more entries than any step has under way: from then on nothing is allocated.
  Tickets() {
    entries_.resize(256);
    for (int ticket = 0; ticket < 256; ++ticket) Free(ticket);
  }

  bool Has(int ticket) const {
    return ticket >= 0 && static_cast<size_t>(ticket) < entries_.size();
  }
  Entry& At(int ticket) { return entries_[static_cast<size_t>(ticket)]; }
  /// Returns a free ticket, whose entry is a copy of this one.
  int Take(const Entry& entry) {
    if (free_ < 0) {
      entries_.emplace_back();
      Free(static_cast<int>(entries_.size()) - 1);
    }
    const int ticket = free_;
    free_ = At(ticket).next;
    At(ticket) = entry;
    return ticket;
  }
  void Free(int ticket) {
    At(ticket).next = free_;
    free_ = ticket;
  }

 private:
  std::deque<Entry> entries_;
  int free_ = -1;
};

}  // namespace contraflow
