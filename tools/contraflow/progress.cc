#include "tools/contraflow/progress.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

namespace contraflow {

Progress::Progress(std::string what) : what_(std::move(what)) {
  if (isatty(STDERR_FILENO) == 1) thread_ = std::thread([this] { Show(); });
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

void Progress::Say(std::string what) {
  const std::lock_guard lock(mutex_);
  what_ = std::move(what);
}

void Progress::Show() {
  std::unique_lock lock(mutex_);
  bool shown = false;
  for (int seconds = 1; !ended_.wait_for(lock, std::chrono::seconds(1), [this] { return end_; });
       ++seconds) {
    std::fprintf(stderr, "\r\033[K%s: %d s", what_.c_str(), seconds);
    shown = true;
  }
  if (shown) std::fputs("\r\033[K", stderr);
}

}  // namespace contraflow
