#include "runtime/core/quiet_thread.h"

#include <csignal>
#include <system_error>
#include <utility>

#include "compiler/plan/error.h"

namespace contraflow {

std::thread StartQuietly(const std::string& what, std::function<void()> work) {
  sigset_t others, before;
  sigfillset(&others);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&others, fault);
  pthread_sigmask(SIG_BLOCK, &others, &before);
  std::thread thread;
  std::error_code failure;
  try {
    thread = std::thread(std::move(work));
  } catch (const std::system_error& error) {
    failure = error.code();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failure) {
    throw Error("cannot start a thread for " + what + ": " + failure.message() +
                "; allow this user more threads (ulimit -u)");
  }
  return thread;
}

}  // namespace contraflow
