#include "tools/contraflow-run/output.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <deque>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/text.h"
#include "tools/cli/terminal.h"

namespace contraflow {
namespace {

constexpr size_t kRoom = size_t{1} << 16;
constexpr const char* kUnread = "nobody read them";

std::string Reason(int error) { return std::generic_category().message(error); }

std::string Lines(int64_t count) { return FormatCount(count) + (count == 1 ? " line" : " lines"); }

}  // namespace

struct Output::State {
  struct Item {
    std::string text;
    int64_t dropped = 0;  ///< lines before it that found no room
  };

  explicit State(int number) : fd(number) {}
  void Serve();
  void Print(const Item& item);
  void Lose(const Item& item, const std::string& reason);

  const int fd;
  std::mutex mutex;  // guards what follows
  std::condition_variable said, progress;
  std::deque<Item> items;
  size_t waiting = 0;   // bytes of the items
  int64_t dropped = 0;  // lines since the last item
  int64_t taken = 0;    // bytes that the reader has
  int64_t lost = 0;     // lines
  std::string why = kUnread;
  bool end = false, ended = false;
  int refused = 0;  // error number of the last item, where it was not the reader's doing

 private:
  // State of the thread alone.
  int64_t unsaid_ = 0;  // lines that are lost and not yet counted in the output
  bool cut_ = false;    // the output ends within a line
};

void Output::State::Serve() {
  std::unique_lock lock(mutex);
  for (;;) {
    said.wait(lock, [this] { return !items.empty() || end; });
    if (items.empty()) break;
    const Item item = std::move(items.front());
    items.pop_front();
    waiting -= item.text.size();
    lock.unlock();
    try {
      Print(item);
      lock.lock();
    } catch (const std::bad_alloc&) {
      lock.lock();
      Lose(item, "out of memory");
    }
  }
  ended = true;
  progress.notify_all();
}

void Output::State::Print(const Item& item) {
  unsaid_ += item.dropped;
  std::string text = cut_ ? "\n" : "";
  if (unsaid_ > 0) text += "[" + Lines(unsaid_) + " dropped: " + why + "]\n";
  text += item.text;
  int error = 0;
  for (std::string_view rest = text; !rest.empty() && error == 0;) {
    const ssize_t written = write(fd, rest.data(), rest.size());
    if (written < 0) {
      if (errno == EAGAIN) {  // somebody else's choice for what may be his terminal, too
        pollfd room{fd, POLLOUT, 0};
        poll(&room, 1, 1000);
      } else if (errno != EINTR) {
        error = errno;
      }
      continue;
    }
    rest.remove_prefix(static_cast<size_t>(written));
    if (!rest.empty() || written > 0) cut_ = text[text.size() - rest.size() - 1] != '\n';
    const std::lock_guard lock(mutex);
    taken += written;
    progress.notify_all();
  }
  const std::lock_guard lock(mutex);
  if (error == 0) {
    unsaid_ = 0;
    refused = 0;
    return;
  }
  Lose(item, Reason(error));
  // A pipe without a reader, or a terminal that was closed.
  struct stat status {};
  const bool device = fstat(fd, &status) == 0 && S_ISCHR(status.st_mode);
  refused = error == EPIPE || error == ECONNRESET || (error == EIO && device) ? 0 : error;
}

/// Under the lock.
void Output::State::Lose(const Item& item, const std::string& reason) {
  const int64_t lines = std::ranges::count(item.text, '\n');
  unsaid_ += lines;
  lost += lines;
  why = reason;
}

Output::Output(int fd) : state_(std::make_shared<State>(fd)) {
  std::signal(SIGPIPE, SIG_IGN);
  try {
    std::thread([state = state_] { state->Serve(); }).detach();
  } catch (const std::system_error& error) {
    throw Error(std::string("no thread can be started to print from: ") + error.what());
  }
}

Output::~Output() { Drain(std::chrono::milliseconds(500)); }

void Output::Say(std::string_view text) {
  const std::lock_guard lock(state_->mutex);
  State& state = *state_;
  if (state.waiting + text.size() > kRoom && !state.items.empty()) {
    const int64_t lines = std::ranges::count(text, '\n');
    state.dropped += lines;
    state.lost += lines;
    return;
  }
  std::string legible = Legible(std::string(text));
  state.waiting += legible.size();
  state.items.push_back({std::move(legible), std::exchange(state.dropped, 0)});
  state.said.notify_one();
}

/// False if something is still waiting, after nothing was taken for so long.
bool Output::Drain(std::chrono::milliseconds patience, const std::function<void()>& waits) {
  constexpr std::chrono::milliseconds kTurn{100};
  std::unique_lock lock(state_->mutex);
  state_->end = true;
  state_->said.notify_one();
  int64_t taken = state_->taken;
  for (auto left = patience; !state_->ended && left.count() > 0; left -= kTurn) {
    state_->progress.wait_for(lock, kTurn, [&] { return state_->ended || state_->taken != taken; });
    if (std::exchange(taken, state_->taken) != state_->taken) left = patience;
    if (waits) waits();
  }
  return state_->ended;
}

bool Output::Finish(std::string_view text, const std::function<void()>& waits) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->waiting += text.size();
    state_->items.push_back({std::string(text), std::exchange(state_->dropped, 0)});
  }
  const bool drained = Drain(kPatience, waits);
  const std::lock_guard lock(state_->mutex);
  std::string note;
  if (!drained) {
    note = "the end of the output was dropped: nobody read it";
  } else if (state_->refused != 0) {
    note = "error: standard output: cannot be written: " + Reason(state_->refused);
  } else if (state_->lost > 0) {
    note = Lines(state_->lost) + " of output were dropped: " + state_->why;
  }
  if (!note.empty()) SayNow(note);
  return !drained || state_->refused == 0;
}

void SayNow(const std::string& text) {
  const std::string line = "contraflow-run: " + Legible(text) + "\n";
  pollfd room{STDERR_FILENO, POLLOUT, 0};
  if (poll(&room, 1, 1000) == 1) static_cast<void>(!write(STDERR_FILENO, line.data(), line.size()));
}

}  // namespace contraflow
