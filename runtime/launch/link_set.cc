#include "runtime/launch/link_set.h"

#include <algorithm>
#include <utility>

#include "runtime/core/quiet_thread.h"

namespace contraflow {

LinkSet::LinkSet(int self, std::vector<Stream> streams)
    : self_(self), links_(streams.size()), bell_(NewBell()) {
  const auto take = [this](int process, uint8_t channel, std::string bytes) {
    watcher_->OnTalk(process, channel, std::move(bytes));
  };
  for (size_t p = 0; p < streams.size(); ++p) {
    if (!streams[p]) continue;
    links_[p] = std::make_unique<Link>(static_cast<int>(p), std::move(streams[p]), take);
  }
}

LinkSet::~LinkSet() { Stop(); }

void LinkSet::Start(Watcher* watcher) {
  watcher_ = watcher;
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

bool LinkSet::AnyOpen() const {
  return std::any_of(links_.begin(), links_.end(),
                     [](const auto& link) { return link != nullptr && link->open(); });
}

void LinkSet::Flush(int process) {
  Link* const link = At(process);
  if (link == nullptr) return;
  link->Write();
  if (link->writes() || !link->open()) Wake();
}

/// What to wait for on each connection. Returns whether something is to be written.
bool LinkSet::Prepare(std::vector<pollfd>* polled) const {
  bool writes = false;
  for (size_t p = 0; p < links_.size(); ++p) {
    const Link* link = links_[p].get();
    const bool open = link != nullptr && link->open();
    const bool out = open && link->writes();
    writes = writes || out;
    (*polled)[p] = {open ? link->fd() : -1, static_cast<short>(out ? POLLIN | POLLOUT : POLLIN), 0};
  }
  (*polled)[links_.size()] = {bell_.fd(), POLLIN, 0};
  (*polled)[links_.size() + 1] = {watcher_->fd(), POLLIN, 0};
  return writes;
}

void LinkSet::Run() {
  std::vector<pollfd> polled(links_.size() + 2);
  Lock lock(mutex_);
  Clock::time_point next = Clock::now();
  for (;;) {
    const bool writes = Prepare(&polled);
    if (over_ && (!writes || Clock::now() >= flush_until_)) return;
    if (over_) next = flush_until_;
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
    lock.unlock();
    const int ready = poll(polled.data(), static_cast<nfds_t>(polled.size()),
                           static_cast<int>(std::clamp<int64_t>(wait, 0, 1'000)));
    if (ready > 0 && polled[links_.size()].revents != 0) Hush(bell_);
    lock.lock();
    for (size_t p = 0; p < links_.size(); ++p) {
      Link* const link = links_[p].get();
      if (link == nullptr || !link->open()) continue;
      const int events = ready > 0 ? polled[p].revents : 0;
      if (events == 0 && !link->writes()) continue;
      if ((events & ~POLLOUT) != 0) {
        link->Read();
        changed_.notify_all();
      }
      link->Write();
      // The main thread has its turn between those of two connections.
      lock.unlock();
      lock.lock();
    }
    if (!over_) next = watcher_->OnTurn(lock);
  }
}

}  // namespace contraflow
