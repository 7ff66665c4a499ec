#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/core/devices.h"
#include "runtime/core/rank_order.h"
#include "runtime/core/transport.h"
#include "runtime/exec/gpu.h"
#include "runtime/nccl/nccl.h"

namespace contraflow {

/// From one rank of a pipeline to another.
using Edge = std::pair<int, int>;
/// Edges that carry messages, ascending.
std::vector<Edge> EdgesOf(const Plan& plan);

/// The communicators of one process of a job, from their beginning to their end: one for each
/// directed edge of its pipeline and each other use, so that what is under way for one does not
/// hold up another.
class NcclComms {
 public:
  enum class Use : uint8_t {
    kExperts,  ///< an expert group, by member
    kSums,     ///< all processes, by their number in the job
  };
  static constexpr int kUses = 2;
  /// NCCL cuts groups of more messages into several kernels, not at the same place everywhere.
  static constexpr size_t kMostMessages = 256;

  struct Options {
    std::chrono::milliseconds timeout{120'000};  ///< of whatever waits for the other processes
    /// Called whenever that has made progress; may be empty.
    std::function<void()> moved;
  };

  /// All arguments must outlive it.
  NcclComms(const Plan& plan, const RankOrder& order, int process, const SmBudget& budget,
            Nccl& nccl, Options options);
  NcclComms(const NcclComms&) = delete;
  /// Aborts what was not closed.
  ~NcclComms();

  /// Makes them; all processes of the job, with one id. Throws Error if that fails or takes longer
  /// than the timeout, Aborted after Abort. kExperts is there if the plan has expert groups.
  void Join(const std::string& id);

  /// Issues messages together: `issue` calls nccl().Send and Recv. Groups may be nested by
  /// BeginGroup and EndGroup; after the outermost all communicators are ready.
  void Group(const std::function<void()>& issue);
  void BeginGroup();
  void EndGroup();
  /// Everybody of `count` to everybody else, this one being at `place`: `issue` sends at most
  /// `each` messages, and receives as many. In groups that are not too large, by how far it is from
  /// one to the other, so that both ends of a message are in the same group of all that they call.
  void ExchangeInGroups(size_t count, size_t place, size_t each,
                        const std::function<void(size_t to, size_t from)>& issue);
  Nccl& nccl() { return nccl_; }
  NcclComm* operator[](Use use) const { return comms_[static_cast<size_t>(use)]; }
  /// Communicator of an edge that begins or ends at this device's rank: its sender is number 0, the
  /// receiver 1.
  NcclComm* operator[](Edge edge) const { return edges_.at(edge); }
  /// Most CTAs that a communicator of this use takes.
  int CtasOf(Use use) const;

  /// Like Nccl::Register, until the communicators end. All members of the communicator do it.
  void Register(NcclComm* comm, std::span<std::byte> memory);
  /// Like Nccl::Open; ready when it returns.
  NcclWindow* Open(NcclComm* comm, std::span<std::byte> memory);

  /// Throws Error if one of them has failed, Aborted after Abort.
  void Poll();
  /// Waits, a turn at a time and polling, until `done`; within the timeout, of which the Error says
  /// that it was for `what`.
  void Await(const std::function<bool()>& done, const std::string& what);
  /// Gives up what is under way; from any thread, and at once: another thread does it.
  void Abort();
  /// The orderly end, after the last step; all processes.
  void Close();

 private:
  template <typename Call>
  auto Locked(const Call& call);
  NcclComm* Split(const std::string& name, int color, int key, int ctas);
  void SplitEdges(int pipeline);
  void AwaitReady(NcclComm* comm, const std::string& what);
  void Deregister(NcclComm* comm) noexcept;
  void End();

  const Plan& plan_;
  const Device device_;
  const int process_, processes_;
  const SmBudget budget_;
  Nccl& nccl_;
  const Options options_;
  NcclComm* world_ = nullptr;
  std::map<Edge, NcclComm*> edges_;
  std::array<NcclComm*, kUses> comms_{};
  std::vector<NcclComm*> all_;  // but `world_`, as they were made
  int depth_ = 0;               // of groups
  std::map<NcclComm*, std::vector<void*>> registered_;
  std::map<NcclComm*, NcclWindow*> windows_;

  std::atomic<bool> aborted_ = false;
  std::timed_mutex calls_;  // held around each call of NCCL
  std::mutex aborting_;     // guards what follows
  std::thread abort_;
  bool closed_ = false;  // by calls_
};

}  // namespace contraflow
