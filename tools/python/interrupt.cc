#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "tools/python/bindings.h"

namespace contraflow::python {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// How long what was interrupted may take to end by itself.
constexpr milliseconds kGrace{500};

/// Work that goes on after its caller was interrupted. With the GIL.
struct Left {
  std::thread thread;
  std::future<void> ended;
  pid_t process;  ///< that has the thread: a fork has not
};
std::vector<Left>& AllLeft() {
  static auto* const left = new std::vector<Left>;  // until the process ends
  return *left;
}

bool Ended(const std::future<void>& ended, milliseconds wait) {
  return ended.wait_for(wait) == std::future_status::ready;
}

/// At the exit of the interpreter: the work uses what goes away after it.
void AwaitLeft() {
  for (Left& left : AllLeft()) {
    if (left.process != getpid()) continue;
    bool ended = false;
    while (!ended) {
      {
        const py::gil_scoped_release others;
        ended = Ended(left.ended, milliseconds(50));
      }
      if (PyErr_CheckSignals() == 0) continue;
      PyErr_Clear();
      py::module_::import("sys").attr("stdout").attr("flush")();
      std::_Exit(128 + SIGINT);
    }
    left.thread.join();
  }
}

}  // namespace

void RunApart(std::function<void()> work, std::atomic<bool>* stop) {
  std::promise<void> promise;
  std::future<void> ended = promise.get_future();
  std::thread thread([work = std::move(work), promise = std::move(promise)]() mutable {
    work();
    work = nullptr;  // and what it holds
    promise.set_value();
  });
  bool interrupted = false, over = false;
  steady_clock::time_point last;
  {
    const py::gil_scoped_release others;
    while (!(over = Ended(ended, milliseconds(50)))) {
      if (interrupted) {
        if (steady_clock::now() > last) break;
        continue;
      }
      const py::gil_scoped_acquire mine;
      if (PyErr_CheckSignals() == 0) continue;
      *stop = interrupted = true;
      last = steady_clock::now() + kGrace;
    }
    if (over) thread.join();
  }
  if (!over) {
    std::erase_if(AllLeft(), [](Left& left) {
      const bool done = left.process == getpid() && Ended(left.ended, milliseconds(0));
      if (done) left.thread.join();
      return done;
    });
    AllLeft().push_back({std::move(thread), std::move(ended), getpid()});
  }
  if (interrupted) throw py::error_already_set();
}

void BindInterrupt() {
  py::module_::import("atexit").attr("register")(py::cpp_function(&AwaitLeft));
}

}  // namespace contraflow::python
