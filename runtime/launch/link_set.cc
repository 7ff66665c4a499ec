#include "runtime/launch/link_set.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/core/quiet_thread.h"
#include "runtime/launch/watch.h"

namespace contraflow {

LinkSet::LinkSet(int self, std::vector<Socket> streams)
    : self_(self), size_(static_cast<int>(streams.size())), wake_event_(NewWakeEvent()) {
  const auto take = [this](int process, uint8_t channel, std::string bytes) {
    watch_->OnTalk(process, channel, std::move(bytes));
  };
  for (int p = 0; p < size_; ++p) {
    Socket& stream = streams[static_cast<size_t>(p)];
    CF_ASSERT(static_cast<bool>(stream) == (p != self_ && (p == 0 || self_ == 0)));
    if (stream) links_.emplace_back(p, std::move(stream), take);
  }
}

LinkSet::~LinkSet() { Stop(); }

void LinkSet::Start(Watch* watch) {
  watch_ = watch;
  thread_ = StartQuietly("the connections between processes", [this] { Run(); });
}

void LinkSet::Stop() {
  constexpr std::chrono::seconds kFlush{1};
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
    flush_until_ = Clock::now() + kFlush;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
}

Link* LinkSet::At(int process) {
  const auto index = static_cast<size_t>(self_ == 0 ? process - 1 : process);
  return index < links_.size() ? &links_[index] : nullptr;
}

bool LinkSet::AnyOpen() const { return std::ranges::any_of(links_, &Link::open); }

void LinkSet::Flush(Link* link) {
  link->Write();
  if (link->writes() || !link->open()) Wake();
}

void LinkSet::Run() {
  std::vector<pollfd> polled(links_.size() + 2);
  Lock lock(mutex_);
  Clock::time_point next = Clock::now();
  for (;;) {
    bool writes = false;  // bytes are left to be written
    for (size_t p = 0; p < links_.size(); ++p) {
      const bool out = links_[p].writes();
      writes = writes || out;
      polled[p] = {links_[p].fd(), static_cast<short>(out ? POLLIN | POLLOUT : POLLIN), 0};
    }
    polled[links_.size()] = {wake_event_.fd(), POLLIN, 0};
    polled[links_.size() + 1] = {watch_->fd(), POLLIN, 0};
    if (over_ && (!writes || Clock::now() >= flush_until_)) return;
    if (over_) next = flush_until_;
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
    lock.unlock();
    const int ready = poll(polled.data(), static_cast<nfds_t>(polled.size()),
                           static_cast<int>(std::clamp<int64_t>(wait, 0, 1'000)));
    if (ready > 0 && polled[links_.size()].revents != 0) ClearEvent(wake_event_);
    lock.lock();
    for (size_t p = 0; p < links_.size(); ++p) {
      Link& link = links_[p];
      const int events = ready > 0 ? polled[p].revents : 0;
      if (!link.open() || (events == 0 && !link.writes())) continue;
      if ((events & ~POLLOUT) != 0) {
        link.Read();
        changed_.notify_all();
      }
      link.Write();
      // The main thread has its turn between those of two connections.
      lock.unlock();
      lock.lock();
    }
    if (!over_) next = watch_->OnTurn(lock);
  }
}

}  // namespace contraflow
