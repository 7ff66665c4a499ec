// The memory is an anonymous file, which others open through the process that has made it. A file
// of /dev/shm would stay after a kill, and containers give it 64 MB.

#include "runtime/transport/shared_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <boost/interprocess/mapped_region.hpp>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <new>
#include <random>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/core/bytes.h"

namespace contraflow {
namespace {

namespace ipc = boost::interprocess;

constexpr size_t kPage = 4096;
constexpr size_t kLeastRing = size_t{64} << 10, kMostRing = size_t{64} << 20;
constexpr size_t kMostOfAll = size_t{1} << 36;
constexpr int kMostProcesses = 1024;

/// An open file in the form that Boost maps: Boost's own gives up where a signal interrupts it.
struct OpenedFile {
  explicit OpenedFile(int opened) : fd(opened) {}
  OpenedFile(const OpenedFile&) = delete;
  ~OpenedFile() {
    if (fd >= 0) close(fd);
  }

  int fd;

  ipc::mapping_handle_t get_mapping_handle() const { return {fd, false}; }
};

/// A call of the system, again where a signal has interrupted it.
template <typename Call>
int Uninterrupted(const Call& call) {
  int result = 0;
  do result = call();
  while (result < 0 && errno == EINTR);
  return result;
}

size_t WholePages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

void RequireProcesses(int processes) {
  if (processes <= kMostProcesses) return;
  throw Error(std::to_string(processes) +
              " processes of one machine cannot share memory; the most are " +
              std::to_string(kMostProcesses));
}

}  // namespace

struct SharedMemory::Mapping {
  ipc::mapped_region region;
};

/// Tells the memory of this job from any other.
struct SharedMemory::Head {
  uint64_t key[2];
  uint64_t processes, ring_bytes;

  bool operator==(const Head&) const = default;
};

/// A futex(2) word, which may have any value. A C library semaphore would abort on a value that
/// another process has damaged.
struct alignas(128) SharedMemory::WakeFlag {
  std::atomic<uint32_t> asleep;
};

namespace {

/// Offsets of the parts, in this order: head, flags, rings, their bytes.
struct Layout {
  Layout(size_t processes, size_t ring_bytes, size_t flag, size_t ring)
      : rings(WholePages(kPage + processes * flag)),
        bytes(WholePages(rings + processes * processes * Wire::kChannels * ring)),
        end(bytes + processes * processes * Wire::kChannels * ring_bytes) {}

  size_t flags = kPage, rings, bytes, end;
};

}  // namespace

size_t SharedMemory::RingBytes(int processes, int64_t message_bytes) {
  const auto count = static_cast<size_t>(processes);
  const size_t share = kMostOfAll / (count * count * static_cast<size_t>(Wire::kChannels));
  const auto two = static_cast<size_t>(std::clamp<int64_t>(message_bytes, 0, kMostRing)) * 2;
  // Their labels too.
  const size_t wanted = std::bit_ceil(two + kPage);
  return std::min(std::clamp(wanted, kLeastRing, kMostRing), std::bit_floor(share));
}

SharedMemory::SharedMemory(int processes, size_t ring_bytes)
    : processes_(processes), ring_bytes_(ring_bytes), mapping_(std::make_unique<Mapping>()) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared between processes");
  CF_ASSERT(processes >= 1 && std::has_single_bit(ring_bytes) && ring_bytes >= kPage);
  RequireProcesses(processes);
  const auto count = static_cast<size_t>(processes);
  const Layout layout(count, ring_bytes, sizeof(WakeFlag), sizeof(Ring));
  const auto refused = [](const char* reason) {
    return Error(std::string("no memory for the processes of this job to share: ") + reason);
  };
  OpenedFile file(memfd_create("contraflow", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // No process may cut off what the others have mapped.
  if (file.fd < 0 ||
      Uninterrupted([&] { return ftruncate(file.fd, static_cast<off_t>(layout.end)); }) != 0 ||
      fcntl(file.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw refused(std::strerror(errno));
  }
  try {
    mapping_->region = ipc::mapped_region(file, ipc::read_write, 0, layout.end);
  } catch (const ipc::interprocess_exception& error) {
    throw refused(error.what());
  }
  file_ = std::exchange(file.fd, -1);
  std::random_device random;
  const auto key = [&] { return uint64_t{random()} << 32 | random(); };
  *static_cast<Head*>(mapping_->region.get_address()) = {{key(), key()}, count, ring_bytes};
  // Flags and rings are zeros, as the file is.
}

SharedMemory::SharedMemory(int processes, const std::string& invitation)
    : processes_(processes), mapping_(std::make_unique<Mapping>()) {
  RequireProcesses(processes);
  ByteReader bytes(invitation, "the place of the shared memory is");
  const auto process = bytes.Take<int32_t>();
  const auto file = bytes.Take<int32_t>();
  const Head head = bytes.Take<Head>();
  bytes.RequireEnd();
  if (head.processes != static_cast<uint64_t>(processes) || !std::has_single_bit(head.ring_bytes) ||
      head.ring_bytes < kPage || head.ring_bytes > kMostRing) {
    throw Error("rank 0 told of shared memory that is not that of this job");
  }
  ring_bytes_ = static_cast<size_t>(head.ring_bytes);
  const Layout layout(static_cast<size_t>(processes), ring_bytes_, sizeof(WakeFlag), sizeof(Ring));
  const auto elsewhere = [](const std::string& reason) {
    return Error("cannot reach the memory of rank 0 (" + reason +
                 "): processes that train on CPUs must run on one machine, in one container and "
                 "as one user; over several machines train on GPUs, or with contraflow.torch");
  };
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(file);
  const OpenedFile opened(Uninterrupted([&] { return open(path.c_str(), O_RDWR | O_CLOEXEC); }));
  if (opened.fd < 0) throw elsewhere(std::strerror(errno));
  try {
    mapping_->region = ipc::mapped_region(opened, ipc::read_write);
  } catch (const ipc::interprocess_exception& error) {
    throw elsewhere(error.what());
  }
  if (mapping_->region.get_size() != layout.end ||
      *static_cast<const Head*>(mapping_->region.get_address()) != head) {
    throw elsewhere("another program has its place");
  }
}

SharedMemory::~SharedMemory() {
  if (file_ >= 0) close(file_);
}

std::string SharedMemory::Invitation() const {
  CF_ASSERT(file_ >= 0);
  return ByteWriter()
      .Put(int32_t{getpid()})
      .Put(int32_t{file_})
      .Put(*static_cast<const Head*>(mapping_->region.get_address()))
      .Take();
}

size_t SharedMemory::PlaceOf(Wire::Channel channel, int from, int to) const {
  CF_ASSERT(from >= 0 && from < processes_ && to >= 0 && to < processes_);
  const auto count = static_cast<size_t>(processes_);
  const size_t pair = static_cast<size_t>(from) * count + static_cast<size_t>(to);
  return pair * static_cast<size_t>(Wire::kChannels) + static_cast<size_t>(channel);
}

SharedMemory::WakeFlag& SharedMemory::WakeFlagOf(int process) const {
  auto* const base = static_cast<std::byte*>(mapping_->region.get_address());
  return reinterpret_cast<WakeFlag*>(base + kPage)[process];
}

SharedMemory::Ring& SharedMemory::RingOf(Wire::Channel channel, int from, int to) const {
  const Layout layout(static_cast<size_t>(processes_), ring_bytes_, sizeof(WakeFlag), sizeof(Ring));
  auto* const base = static_cast<std::byte*>(mapping_->region.get_address());
  return reinterpret_cast<Ring*>(base + layout.rings)[PlaceOf(channel, from, to)];
}

std::span<std::byte> SharedMemory::BytesOf(Wire::Channel channel, int from, int to) const {
  const Layout layout(static_cast<size_t>(processes_), ring_bytes_, sizeof(WakeFlag), sizeof(Ring));
  auto* const base = static_cast<std::byte*>(mapping_->region.get_address());
  return {base + layout.bytes + PlaceOf(channel, from, to) * ring_bytes_, ring_bytes_};
}

void SharedMemory::PrepareToSleep(int process) const { WakeFlagOf(process).asleep = 1; }

void SharedMemory::Sleep(int process, std::chrono::milliseconds most) const {
  std::atomic<uint32_t>& asleep = WakeFlagOf(process).asleep;
  const timespec time = {static_cast<time_t>(most.count() / 1000),
                         static_cast<long>(most.count() % 1000) * 1'000'000};
  // Returns at once where Wake came first.
  (void)syscall(SYS_futex, &asleep, FUTEX_WAIT, 1, &time, nullptr, 0);
  asleep = 0;
}

void SharedMemory::Wake(int process) const {
  std::atomic<uint32_t>& asleep = WakeFlagOf(process).asleep;
  if (asleep.load() == 0 || asleep.exchange(0) == 0) return;
  (void)syscall(SYS_futex, &asleep, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

}  // namespace contraflow
