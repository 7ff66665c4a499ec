#pragma once

#include <atomic>

namespace contraflow {

/// While it lives, the first Ctrl-C (SIGINT) sets `stop()` instead of ending the process; the
/// second ends it as usual. One at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  /// True from that Ctrl-C on until the next Interrupt is made.
  static const std::atomic<bool>& stop();
  bool happened() const { return stop().load(); }

 private:
  bool installed_ = false;
};

}  // namespace contraflow
