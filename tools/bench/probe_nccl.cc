// Several NCCL ranks on one GPU, each a process that says it is on a host of its own: whether data
// arrive when both directions of a pipeline run at once, each on a communicator of its own. Times
// show only that it moves: processes take turns on the GPU.
//
// Exit code 77, and why, where there is no GPU; 1 if something failed.

#include <cuda_runtime.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "tools/bench/figure.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"

namespace contraflow {
namespace {

constexpr int kExitSkipped = 77;
constexpr int kRounds = 5;
// Sizes that fit the buffers of a connection, and one that does not.
constexpr std::array<size_t, 3> kBytes = {4096, size_t{1} << 20, size_t{16} << 20};

/// Report of a rank to its parent.
struct Result {
  double init = 0;                                 ///< seconds
  std::array<double, kBytes.size()> seconds = {};  ///< the best of the rounds
  int wrong = 0;                                   ///< messages with other data than were sent
};

void Check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  throw Error(std::string(what) + ": " + ncclGetErrorString(result) + " (" +
              ncclGetLastError(nullptr) + ")");
}
void Check(cudaError_t result, const char* what) {
  if (result != cudaSuccess) throw Error(std::string(what) + ": " + cudaGetErrorString(result));
}
#define CF_CALL(call) Check(call, #call)

using Clock = std::chrono::steady_clock;
double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Rank {
 public:
  Rank(int rank, int ranks, const ncclUniqueId& id) : rank_(rank), ranks_(ranks) {
    const Clock::time_point start = Clock::now();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.maxCTAs = 2;
    CF_CALL(cudaSetDevice(0));
    CF_CALL(ncclCommInitRankConfig(&all_, ranks, id, rank, &config));
    for (Direction* way : {&down_, &up_}) {
      CF_CALL(ncclCommSplit(all_, 0, rank, &way->comm, &config));
      CF_CALL(cudaStreamCreateWithFlags(&way->stream, cudaStreamNonBlocking));
    }
    down_.from = rank - 1, down_.to = rank + 1;
    up_.from = rank + 1, up_.to = rank - 1;
    result_.init = Since(start);
  }

  Result Run() {
    for (size_t i = 0; i < kBytes.size(); ++i) {
      const size_t bytes = kBytes[i];
      for (Direction* way : {&down_, &up_}) {
        CF_CALL(cudaMalloc(&way->out, bytes));
        CF_CALL(cudaMalloc(&way->in, bytes));
        CF_CALL(cudaMemset(way->out, ValueOf(rank_, *way), bytes));
        CF_CALL(cudaMemset(way->in, 0, bytes));
      }
      CF_CALL(cudaDeviceSynchronize());
      for (int round = 0; round < kRounds; ++round) {
        const Clock::time_point start = Clock::now();
        for (Direction* way : {&down_, &up_}) {
          if (Is(way->from)) {
            CF_CALL(ncclRecv(way->in, bytes, ncclChar, way->from, way->comm, way->stream));
          }
          if (Is(way->to)) {
            CF_CALL(ncclSend(way->out, bytes, ncclChar, way->to, way->comm, way->stream));
          }
        }
        for (Direction* way : {&down_, &up_}) CF_CALL(cudaStreamSynchronize(way->stream));
        const double seconds = Since(start);
        double& best = result_.seconds[i];
        if (round == 0 || seconds < best) best = seconds;
      }
      for (Direction* way : {&down_, &up_}) {
        if (!Is(way->from)) continue;
        std::vector<unsigned char> got(bytes);
        CF_CALL(cudaMemcpy(got.data(), way->in, bytes, cudaMemcpyDeviceToHost));
        const std::vector<unsigned char> sent(bytes,
                                              static_cast<unsigned char>(ValueOf(way->from, *way)));
        if (got != sent) ++result_.wrong;
      }
    }
    return result_;
  }

 private:
  struct Direction {
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    int from = -1, to = -1;
    void *out = nullptr, *in = nullptr;
  };
  bool Is(int rank) const { return rank >= 0 && rank < ranks_; }
  int ValueOf(int rank, const Direction& way) const { return rank + (&way == &up_ ? 101 : 1); }

  const int rank_, ranks_;
  ncclComm_t all_ = nullptr;
  Direction down_, up_;
  Result result_;
};

/// A child: gets the id from rank 0 by a pipe, and tells its result by another.
int RunRank(int rank, const std::vector<std::array<int, 2>>& ids, int results) {
  setenv("NCCL_HOSTID", ("virtual-host-" + std::to_string(rank)).c_str(), 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  setenv("NCCL_IB_DISABLE", "1", 0);
  setenv("NCCL_MAX_CTAS", "2", 0);
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess || devices == 0) {
    int driver = 0;
    const bool none = cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0;
    if (rank == 0) {
      std::printf("SKIP: no GPU: %s\n",
                  none ? "no CUDA driver is installed" : cudaGetErrorString(found));
    }
    return kExitSkipped;
  }
  ncclUniqueId id;
  if (rank == 0) {
    CF_CALL(ncclGetUniqueId(&id));
    for (size_t r = 1; r < ids.size(); ++r) {
      if (write(ids[r][1], &id, sizeof id) != sizeof id) throw Error("the id cannot be sent");
    }
  } else if (read(ids[static_cast<size_t>(rank)][0], &id, sizeof id) != sizeof id) {
    throw Error("rank " + std::to_string(rank) + " gets no id from rank 0");
  }
  const Result result = Rank(rank, static_cast<int>(ids.size()), id).Run();
  if (write(results, &result, sizeof result) != sizeof result) throw Error("no result is sent");
  return EXIT_SUCCESS;
}

int Run(int ranks, const std::string& json) {
  std::vector<std::array<int, 2>> ids(static_cast<size_t>(ranks));
  std::array<int, 2> results;
  for (std::array<int, 2>& ends : ids) {
    if (pipe(ends.data()) != 0) throw Error("no pipe can be made");
  }
  if (pipe(results.data()) != 0) throw Error("no pipe can be made");
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child < 0) throw Error("no process can be made");
    if (child == 0) {
      // No state of CUDA or NCCL is taken down, which could wait for the others.
      const int code = RunMain("probe_nccl", [&] { return RunRank(rank, ids, results[1]); });
      std::fflush(stdout);
      _exit(code);
    }
    children.push_back(child);
  }
  int code = EXIT_SUCCESS;
  for (int left = ranks; left > 0; --left) {
    int status = 0;
    wait(&status);
    const int ended = WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
    if (ended == EXIT_SUCCESS || code != EXIT_SUCCESS) continue;
    code = ended;
    // The others would wait for it for ever.
    if (code != kExitSkipped) {
      for (const pid_t child : children) kill(child, SIGKILL);
    }
  }
  if (code != EXIT_SUCCESS) return code;
  Result worst;
  for (int rank = 0; rank < ranks; ++rank) {
    Result result;
    if (read(results[0], &result, sizeof result) != sizeof result) throw Error("a result is lost");
    worst.wrong += result.wrong;
    worst.init = std::max(worst.init, result.init);
    for (size_t i = 0; i < kBytes.size(); ++i) {
      worst.seconds[i] = std::max(worst.seconds[i], result.seconds[i]);
    }
  }
  const auto add = [&](const Figure& figure) {
    std::printf("%s", FormatFigure(figure).c_str());
    if (!json.empty()) AppendFigure(json, "probe-nccl", figure);
  };
  const std::string title = std::to_string(ranks) + " NCCL ranks on one GPU: ";
  const double messages = 2.0 * (ranks - 1) * kBytes.size();
  add({title + "messages with the right data", messages - worst.wrong, "", messages});
  add({title + "to begin, with two splits", worst.init * 1e3, "ms"});
  for (size_t i = 0; i < kBytes.size(); ++i) {
    add({title + std::to_string(kBytes[i]) + " bytes each way along the chain",
         worst.seconds[i] * 1e3, "ms"});
  }
  return worst.wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace contraflow

int main(int argc, char** argv) {
  int ranks = 4;
  std::string json;
  return contraflow::RunTool(
      "probe_nccl", "Runs several NCCL ranks on the machine's one GPU.", argc, argv,
      [&](CLI::App* app) {
        contraflow::AddInteger(app, "--ranks", &ranks, "N", "processes (default: 4)", 2);
        contraflow::AddText(app, "--json", &json, "FILE",
                            "append each figure to FILE, one JSON object a line");
      },
      [&] { return contraflow::Run(ranks, json); });
}
