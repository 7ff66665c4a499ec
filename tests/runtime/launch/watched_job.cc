#include "tests/runtime/launch/watched_job.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <span>

#include "compiler/plan/error.h"
#include "runtime/core/bytes.h"

namespace contraflow {

std::vector<Membership> JoinWatch(int size) {
  std::vector<Membership> members(static_cast<size_t>(size));
  for (int p = 0; p < size; ++p) {
    Membership& member = members[static_cast<size_t>(p)];
    member.rank = p;
    member.size = size;
    member.links.resize(static_cast<size_t>(size));
  }
  for (size_t p = 1; p < members.size(); ++p) {
    int fds[2];
    CF_ASSERT(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    members[0].links[p] = Socket(fds[0]);
    members[p].links[0] = Socket(fds[1]);
  }
  return members;
}

Control::Options Unhurried() {
  Control::Options options;
  options.bound = std::chrono::seconds(20);
  return options;
}

WatchedJob::WatchedJob(int size, const Control::Options& options,
                       const std::vector<int>& unwatched) {
  for (Membership& membership : JoinWatch(size)) {
    members_.push_back(std::make_unique<Member>());
    members_.back()->membership = std::move(membership);
  }
  for (int rank = 0; rank < size; ++rank) {
    if (std::ranges::count(unwatched, rank) > 0) continue;
    Member& member = *members_[static_cast<size_t>(rank)];
    Control::Options own = options;
    own.catch_signals = false;
    own.print = [this, rank, print = options.print](const std::string& report) {
      if (print) print(report);
      const std::lock_guard lock(mutex_);
      reports_.emplace_back(rank, report);
    };
    own.exit = [this, rank](int code) {
      const std::lock_guard lock(mutex_);
      members_[static_cast<size_t>(rank)]->end.code = code;
    };
    member.control = std::make_unique<Control>(std::move(member.membership), member.progress, own);
  }
}

WatchedJob::~WatchedJob() { Join(); }

void WatchedJob::Start(int rank, const Body& body) {
  Member& member = *members_[static_cast<size_t>(rank)];
  member.thread = std::thread([this, rank, &member, body] {
    try {
      body(rank, *member.control, member.progress);
    } catch (const Aborted&) {
      {
        const std::lock_guard lock(mutex_);
        member.end.aborted = true;
      }
      member.control->Fail(FaultKind::kError, "", 7);
    } catch (const Error& error) {
      {
        const std::lock_guard lock(mutex_);
        member.end.error = error.what();
      }
      member.control->Fail(FaultKind::kError, error.what(), 10 + rank);
    }
  });
}

void WatchedJob::Join() {
  for (const auto& member : members_) {
    if (member->thread.joinable()) member->thread.join();
  }
}

void WatchedJob::Run(const Body& body) {
  StartAll(body);
  Join();
}

void WatchedJob::StartAll(const Body& body) {
  for (int rank = 0; rank < size(); ++rank) {
    if (members_[static_cast<size_t>(rank)]->control != nullptr) Start(rank, body);
  }
}

WatchedJob::End WatchedJob::end(int rank) {
  const std::lock_guard lock(mutex_);
  return members_[static_cast<size_t>(rank)]->end;
}

std::vector<std::pair<int, std::string>> WatchedJob::reports() {
  const std::lock_guard lock(mutex_);
  return reports_;
}

std::string WatchedJob::Report() {
  const auto all = reports();
  return all.size() == 1 ? all[0].second : std::to_string(all.size()) + " reports";
}

void WaitForStop(Control& control) {
  std::mutex mutex;
  std::condition_variable changed;
  bool stopped = false;
  control.OnStop([&] {
    const std::lock_guard lock(mutex);
    stopped = true;
    changed.notify_all();
  });
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return stopped; });
  }
  control.OnStop(nullptr);
  throw Aborted();
}

void SendTalk(Socket& stream, uint8_t channel, const std::string& bytes) {
  const Frame frame{channel, Frame::kWhole, 0, static_cast<uint32_t>(bytes.size())};
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(120);
  stream.WriteAll(std::as_bytes(std::span(&frame, 1)), deadline);
  stream.WriteAll(std::as_bytes(std::span(bytes)), deadline);
}

std::string BytesOf(const Fault& fault) {
  return ByteWriter().Put(fault.kind).Put(int32_t{fault.process}).PutText(fault.text).Take();
}

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace contraflow
