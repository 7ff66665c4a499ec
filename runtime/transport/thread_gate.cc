#include "runtime/transport/thread_gate.h"

#include <algorithm>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

/// `0.05`, without zeros behind it.
std::string DecimalSeconds(std::chrono::milliseconds time) {
  std::string text = std::to_string(std::chrono::duration<double>(time).count());
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace

ThreadGate::ThreadGate(int rank_count, int replica_count, int member_count,
                       std::chrono::milliseconds timeout)
    : ranks(rank_count),
      replicas(replica_count),
      members(member_count),
      timeout_(timeout),
      sleepers_(static_cast<size_t>(replicas) * static_cast<size_t>(members) *
                static_cast<size_t>(ranks)) {
  CF_ASSERT(replicas > 0 && members > 0 && ranks > 0);
}

std::string ThreadGate::NameOf(int worker) const {
  const Device device = DeviceOf(worker);
  std::string name;
  if (replicas > 1) name += "replica " + std::to_string(device.replica) + " ";
  if (members > 1) name += "member " + std::to_string(device.member) + " ";
  return name + "rank " + std::to_string(device.rank);
}

ThreadGate::Lock ThreadGate::Enter() {
  Lock lock(mutex_);
  if (aborted_) throw Aborted();
  last_call_ = Clock::now();
  return lock;
}

void ThreadGate::Begin(int worker, const Instruction& at, const Meeting* meeting) {
  Sleeper& self = sleepers_[static_cast<size_t>(worker)];
  self.waits = true;
  self.at = at;
  self.meeting = meeting;
}

void ThreadGate::Sleep(Lock& lock, int worker) {
  if (aborted_) throw Aborted();
  const Clock::time_point deadline = last_call_ + timeout_;
  if (Clock::now() >= deadline) {
    // Nobody may begin to work on the memory of a worker that has given up.
    aborted_ = true;
    throw Error("no rank has made progress for " + DecimalSeconds(timeout_) + " s: " + WhoWaits() +
                "; verify the plan, or allow more time with `timeout`");
  }
  // Whether it was woken, woke by itself or overslept: the caller looks again.
  sleepers_[static_cast<size_t>(worker)].wake.wait_until(lock, deadline);
}

void ThreadGate::Wake(int worker) { sleepers_[static_cast<size_t>(worker)].wake.notify_one(); }

void ThreadGate::WakeAll(const Meeting& meeting) {
  for (const int worker : meeting.workers) Wake(worker);
}

void ThreadGate::Arrive(Meeting* meeting, int worker) {
  const auto self = std::find(meeting->workers.begin(), meeting->workers.end(), worker);
  CF_ASSERT(self != meeting->workers.end());
  char& here = meeting->here[static_cast<size_t>(self - meeting->workers.begin())];
  CF_ASSERT(here == 0);
  here = 1;
  if (++meeting->arrived < meeting->workers.size()) return;
  meeting->last_arrival = Clock::now();
  WakeAll(*meeting);
}

void ThreadGate::Finish(Meeting* meeting) {
  if (++meeting->finished < meeting->workers.size()) return;
  meeting->arrived = meeting->finished = 0;
  std::fill(meeting->here.begin(), meeting->here.end(), 0);
  ++meeting->round;
  WakeAll(*meeting);
}

void ThreadGate::Abort() {
  const Lock lock(mutex_);
  aborted_ = true;
  for (Sleeper& sleeper : sleepers_) sleeper.wake.notify_one();
}

std::string ThreadGate::WhoWaits() const {
  std::string text;
  for (size_t w = 0; w < sleepers_.size(); ++w) {
    const Sleeper& sleeper = sleepers_[w];
    text += (w == 0 ? "" : "; ") + NameOf(static_cast<int>(w));
    if (!sleeper.waits) {
      text += " waits for nobody";
    } else {
      text += " waits at " + ToString(sleeper.at) + " for " +
              (sleeper.meeting != nullptr ? Absent(*sleeper.meeting)
                                          : "rank " + std::to_string(sleeper.at.peer));
    }
  }
  return text;
}

std::string ThreadGate::Absent(const Meeting& meeting) const {
  constexpr size_t kNamed = 3;
  const size_t absent = meeting.workers.size() - meeting.arrived;
  std::string text;
  size_t named = 0;
  for (size_t i = 0; i < meeting.workers.size() && named < kNamed; ++i) {
    if (meeting.here[i] != 0) continue;
    text += (named++ == 0 ? "" : ", ") + NameOf(meeting.workers[i]);
  }
  return absent > named ? text + " and " + std::to_string(absent - named) + " more" : text;
}

}  // namespace contraflow
