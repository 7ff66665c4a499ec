#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace contraflow {

/// Says on stderr what takes so long, while it lives: only on a terminal, only after a second, in
/// one line that is wiped at the end. Nothing may be printed to the terminal meanwhile.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();

  /// Says something else from now on.
  void Say(std::string what);

 private:
  void Show();

  std::mutex mutex_;
  std::string what_;
  std::condition_variable ended_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace contraflow
