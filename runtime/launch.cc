#include "runtime/launch.h"

#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#include "compiler/error.h"
#include "runtime/executor.h"

namespace contraflow {
namespace {

/// The first failure of a run; every later one only follows from it.
class FirstError {
 public:
  void Keep(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
  }
  void Rethrow() {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

/// The same error, which begins with the replica where there are several.
std::exception_ptr InReplica(const Plan& plan, int replica, std::exception_ptr error) {
  if (plan.data_parallel == 1) return error;
  const std::string place = "replica " + std::to_string(replica) + ", ";
  try {
    std::rethrow_exception(error);
  } catch (const Aborted&) {
    return error;
  } catch (const InternalError& e) {
    return std::make_exception_ptr(InternalError(place + e.what()));
  } catch (const Error& e) {
    return std::make_exception_ptr(Error(place + e.what()));
  }
}

}  // namespace

std::vector<std::vector<Span>> LaunchStep(const Plan& plan, int step,
                                          std::span<const Worker> workers) {
  CheckExecutable(plan);
  if (workers.size() > kMaxThreads) {
    throw Error("the plan needs " + std::to_string(workers.size()) +
                " threads (ranks times replicas), at most " + std::to_string(kMaxThreads) +
                " are possible in one process");
  }
  std::vector<std::vector<Span>> spans(workers.size());
  FirstError first;
  {
    std::vector<std::jthread> threads;
    threads.reserve(workers.size());
    const Clock::time_point origin = Clock::now();
    for (size_t w = 0; w < workers.size(); ++w) {
      const auto run = [&, w] {
        const Worker& worker = workers[w];
        try {
          spans[w] =
              ExecuteProgram(plan, worker.rank, step, *worker.backend, *worker.transport, origin);
        } catch (...) {
          // Kept before anyone is woken: what the others then throw comes later.
          first.Keep(InReplica(plan, worker.replica, std::current_exception()));
          worker.transport->Abort();
        }
      };
      try {
        threads.emplace_back(run);
      } catch (const std::system_error& error) {
        first.Keep(std::make_exception_ptr(Error("cannot start " + std::to_string(workers.size()) +
                                                 " threads: " + error.code().message() +
                                                 "; use a plan with fewer ranks")));
        workers[w].transport->Abort();
        break;
      }
    }
  }
  first.Rethrow();
  return spans;
}

}  // namespace contraflow
