#include "runtime/nccl/library.h"

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "compiler/plan/error.h"

namespace contraflow {

std::string NewNcclId() {
  ncclUniqueId id;
  const ncclResult_t result = ncclGetUniqueId(&id);
  if (result != ncclSuccess) {
    throw Error(std::string("NCCL makes no id for a communicator: ") + ncclGetErrorString(result) +
                " (" + ncclGetLastError(nullptr) +
                "); NCCL_SOCKET_IFNAME names the network interface that it is to use");
  }
  return {id.internal, sizeof(id.internal)};
}

class NcclLibrary::Comm : public NcclComm {
 public:
  Comm(const NcclCommOptions& options, Comm* from) : name(options.name), parent(from) {}

  const std::string name;
  Comm* const parent;           // whose split this is; null: none
  ncclComm_t handle = nullptr;  // of a split, only when that is done
  bool pending = true;          // NCCL is still at what was asked last
};

class NcclLibrary::Window : public NcclWindow {
 public:
  ncclWindow_t handle = nullptr;  // once the communicator is ready; then null: NCCL opens none
};

namespace {

bool Failed(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

std::string VersionText(int code) {
  return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." +
         std::to_string(code % 100);
}

/// Remedy, as far as an error alone tells.
std::string RemedyOf(ncclResult_t result) {
  if (result == ncclRemoteError || result == ncclSystemError) {
    return "; look for a process that failed first, and whether NCCL_SOCKET_IFNAME names a network "
           "that all machines share";
  }
  if (result == ncclInvalidUsage) {
    return "; every process needs a GPU of its own (several on one for a test: a different "
           "NCCL_HOSTID for each)";
  }
  return "; NCCL_DEBUG=INFO tells more";
}

[[noreturn]] void Fail(const std::string& what, ncclResult_t result) {
  std::string text = "NCCL: " + what + ": " + ncclGetErrorString(result);
  const char* const detail = ncclGetLastError(nullptr);
  if (detail != nullptr && *detail != '\0') text += std::string(" (") + detail + ")";
  throw Error(text + RemedyOf(result));
}

/// Throws if it has failed. Whether NCCL is still at it only ncclGroupEnd says for sure:
/// ncclCommSplit returns ncclSuccess where it has but begun (2.28 to 2.30, src/init.cc).
bool Begun(const std::string& what, ncclResult_t result) {
  if (Failed(result)) Fail(what, result);
  return result == ncclInProgress;
}

/// The name must live as long as the communicator, which is made while other things go on.
ncclConfig_t ConfigOf(const std::string& name, int max_ctas) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.minCTAs = 1;
  config.maxCTAs = max_ctas;
  config.splitShare = 0;
  config.commName = name.c_str();
  return config;
}

cudaStream_t Handle(gpu::Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

}  // namespace

void NcclLibrary::SetDefaults() {
  constexpr int kKeep = 0;
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", kKeep);
  setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", kKeep);
  setenv("CUDA_MODULE_LOADING", "EAGER", kKeep);
}

NcclLibrary::NcclLibrary() {
  int version = 0;
  Begun("ncclGetVersion", ncclGetVersion(&version));
  if (version >= NCCL_VERSION_CODE) return;
  throw Error("NCCL: the library is version " + VersionText(version) +
              ", this program was built with " + VersionText(NCCL_VERSION_CODE) +
              "; let LD_LIBRARY_PATH name that one or a newer one");
}

NcclLibrary::~NcclLibrary() {
  // A communicator that has not been ended in order cannot be waited for: others may be gone.
  for (auto comm = comms_.rbegin(); comm != comms_.rend(); ++comm) Abort(comm->get());
  if (memory_.empty()) return;
  // Work that still runs may use it; CUDA's own memory is not taken away before either.
  cudaDeviceSynchronize();
  for (void* memory : memory_) ncclMemFree(memory);
}

std::string NcclLibrary::NewId() { return NewNcclId(); }

NcclComm* NcclLibrary::Join(const std::string& id, int rank, int size,
                            const NcclCommOptions& options) {
  ncclUniqueId unique;
  if (id.size() != sizeof unique.internal) {
    throw Error("NCCL: the id of a communicator has " + std::to_string(id.size()) + " bytes, not " +
                std::to_string(sizeof unique.internal) +
                "; let all processes run the same version");
  }
  std::memcpy(unique.internal, id.data(), id.size());
  Comm* const comm = comms_.emplace_back(std::make_unique<Comm>(options, nullptr)).get();
  ncclConfig_t config = ConfigOf(comm->name, options.max_ctas);
  Begun("the processes of the job do not join",
        ncclCommInitRankConfig(&comm->handle, size, unique, rank, &config));
  return comm;
}

NcclComm* NcclLibrary::Split(NcclComm* parent, int color, int key, const NcclCommOptions& options) {
  auto* const whole = static_cast<Comm*>(parent);
  CF_ASSERT(!whole->pending);
  if (color == kNoColor) {
    ncclComm_t none = nullptr;
    Begun("a communicator of others cannot be split off",
          ncclCommSplit(whole->handle, NCCL_SPLIT_NOCOLOR, 0, &none, nullptr));
    whole->pending = true;
    return nullptr;
  }
  Comm* const comm = comms_.emplace_back(std::make_unique<Comm>(options, whole)).get();
  ncclConfig_t config = ConfigOf(comm->name, options.max_ctas);
  Begun("communicator \"" + comm->name + "\" cannot be split off",
        ncclCommSplit(whole->handle, color, key, &comm->handle, &config));
  whole->pending = true;
  return comm;
}

void* NcclLibrary::Allocate(size_t bytes) {
  void* memory = nullptr;
  const ncclResult_t result = ncclMemAlloc(&memory, bytes);
  if (Failed(result)) {
    Fail("a GPU has no " + std::to_string(bytes) + " bytes of memory for messages", result);
  }
  memory_.push_back(memory);
  return memory;
}

std::span<std::byte> NcclLibrary::NewMemory(size_t bytes) {
  constexpr size_t kAlignment = 4096;
  const size_t wanted = std::max<size_t>(bytes, 1);
  void* at = Allocate(wanted);
  if (reinterpret_cast<uintptr_t>(at) % kAlignment != 0) {
    // Here NCCL has only what cudaMalloc gives.
    ncclMemFree(at);
    memory_.pop_back();
    size_t room = wanted + kAlignment;
    at = Allocate(room);
    at = std::align(kAlignment, wanted, at, room);
  }
  return {static_cast<std::byte*>(at), wanted};
}

void* NcclLibrary::Register(NcclComm* of, std::byte* data, size_t bytes) {
  auto* const comm = static_cast<Comm*>(of);
  CF_ASSERT(!comm->pending);
  void* registration = nullptr;
  const ncclResult_t result = ncclCommRegister(comm->handle, data, bytes, &registration);
  // If one process registers and another does not, messages are undefined.
  if (result != ncclSuccess) {
    Fail("memory cannot be registered in \"" + comm->name +
             "\", which NCCL_LOCAL_REGISTER=0 in all processes would leave out",
         result);
  }
  registers_ = registration != nullptr;
  return registration;
}

void NcclLibrary::Deregister(NcclComm* of, void* registration) noexcept {
  auto* const comm = static_cast<Comm*>(of);
  if (comm->handle != nullptr && registration != nullptr) {
    ncclCommDeregister(comm->handle, registration);
  }
}

std::string NcclLibrary::Report() const {
  int version = 0;
  ncclGetVersion(&version);
  return VersionText(version) + (registers_ ? ", registered buffers" : ", no registered buffers");
}

void NcclLibrary::GroupStart() {
  Begun("ncclGroupStart", ncclGroupStart());
  ++depth_;
}

void NcclLibrary::GroupEnd() {
  const bool pending = Begun("a group of messages cannot be issued", ncclGroupEnd());
  if (--depth_ > 0) return;
  for (Comm* comm : in_group_) comm->pending = pending;
  in_group_.clear();
}

void NcclLibrary::Send(NcclComm* to_comm, const void* data, size_t bytes, int to,
                       gpu::Stream stream) {
  auto* const comm = static_cast<Comm*>(to_comm);
  in_group_.push_back(comm);
  Begun("ncclSend in \"" + comm->name + "\"",
        ncclSend(data, bytes, ncclChar, to, comm->handle, Handle(stream)));
}

void NcclLibrary::Recv(NcclComm* from_comm, void* data, size_t bytes, int from,
                       gpu::Stream stream) {
  auto* const comm = static_cast<Comm*>(from_comm);
  in_group_.push_back(comm);
  Begun("ncclRecv in \"" + comm->name + "\"",
        ncclRecv(data, bytes, ncclChar, from, comm->handle, Handle(stream)));
}

// Windows of any size and captured puts are there from 2.30.7 on. A feature that the header does
// not know is no part of the program.
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 7)

namespace {

/// One that the program does not need to start: an older library is refused with its version.
template <typename Function>
Function* Find(Function* /*declared*/, const char* name) {
  auto* const found = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  if (found == nullptr) throw Error(std::string("NCCL: the library has no ") + name);
  return found;
}
#define CF_FIND(function) Find(static_cast<decltype(&(function))>(nullptr), #function)

constexpr int kSignal = 0, kContext = 0;
constexpr unsigned kNoFlags = 0;

}  // namespace

void NcclLibrary::RequirePuts() {}

void NcclLibrary::Put(NcclComm* to_comm, const void* data, size_t bytes, int to, NcclWindow* window,
                      size_t offset, gpu::Stream stream) {
  auto* const comm = static_cast<Comm*>(to_comm);
  in_group_.push_back(comm);
  const ncclWindow_t handle = static_cast<Window*>(window)->handle;
  if (handle == nullptr) {
    throw Error(
        "NCCL: nothing can be put into the memory of another GPU here: that takes NVLink or "
        "InfiniBand between them and CUDA driver 12.5 or newer; leave out `one_sided`");
  }
  static auto* const put = CF_FIND(ncclPutSignal);
  Begun("ncclPutSignal in \"" + comm->name + "\"",
        put(data, bytes, ncclChar, to, handle, offset, kSignal, kContext, kNoFlags, comm->handle,
            Handle(stream)));
}

void NcclLibrary::Signal(NcclComm* to_comm, int to, gpu::Stream stream) {
  auto* const comm = static_cast<Comm*>(to_comm);
  in_group_.push_back(comm);
  static auto* const signal = CF_FIND(ncclSignal);
  Begun("ncclSignal in \"" + comm->name + "\"",
        signal(to, kSignal, kContext, kNoFlags, comm->handle, Handle(stream)));
}

void NcclLibrary::AwaitSignal(NcclComm* from_comm, int from, gpu::Stream stream) {
  auto* const comm = static_cast<Comm*>(from_comm);
  in_group_.push_back(comm);
  static auto* const wait = CF_FIND(ncclWaitSignal);
  ncclWaitSignalDesc_t one = {};
  one.opCnt = 1;
  one.peer = from;
  one.sigIdx = kSignal;
  one.ctx = kContext;
  Begun("ncclWaitSignal in \"" + comm->name + "\"", wait(1, &one, comm->handle, Handle(stream)));
}

#undef CF_FIND

#else

void NcclLibrary::RequirePuts() {
  throw Error(
      "NCCL: one-sided messages need NCCL 2.30.7 or newer, and this program was built with " +
      VersionText(NCCL_VERSION_CODE) +
      "; build it with a newer one (CF_NCCL_INCLUDE_DIR, CF_NCCL_LIBRARY), or leave out "
      "`one_sided`");
}

// Nobody calls these where RequirePuts has thrown.
void NcclLibrary::Put(NcclComm*, const void*, size_t, int, NcclWindow*, size_t, gpu::Stream) {
  CF_ASSERT(false);
}
void NcclLibrary::Signal(NcclComm*, int, gpu::Stream) { CF_ASSERT(false); }
void NcclLibrary::AwaitSignal(NcclComm*, int, gpu::Stream) { CF_ASSERT(false); }

#endif

NcclWindow* NcclLibrary::Open(NcclComm* of, std::byte* data, size_t bytes) {
  auto* const comm = static_cast<Comm*>(of);
  CF_ASSERT(!comm->pending);
  Window* const window = windows_.emplace_back(std::make_unique<Window>()).get();
  Begun(
      "memory of others cannot be reached in \"" + comm->name + "\"",
      ncclCommWindowRegister(comm->handle, data, bytes, &window->handle, NCCL_WIN_COLL_SYMMETRIC));
  comm->pending = true;
  return window;
}

void NcclLibrary::Close(NcclComm* of, NcclWindow* opened) noexcept {
  auto* const comm = static_cast<Comm*>(of);
  auto* const window = static_cast<Window*>(opened);
  if (comm->handle != nullptr && window->handle != nullptr) {
    ncclCommWindowDeregister(comm->handle, window->handle);
  }
  window->handle = nullptr;
}

bool NcclLibrary::Ready(NcclComm* of) {
  auto* const comm = static_cast<Comm*>(of);
  if (!comm->pending) return true;
  // A split is first something that the parent does.
  if (comm->parent != nullptr && comm->parent->pending) {
    Check(comm->parent);
    if (comm->parent->pending) return false;
  }
  if (comm->handle == nullptr) return false;
  Check(comm);
  return !comm->pending;
}

void NcclLibrary::Check(NcclComm* of) {
  auto* const comm = static_cast<Comm*>(of);
  if (comm->handle == nullptr) return;
  ncclResult_t state = ncclSuccess;
  Begun("ncclCommGetAsyncError", ncclCommGetAsyncError(comm->handle, &state));
  comm->pending = Begun("communicator \"" + comm->name + "\" has failed", state);
}

void NcclLibrary::Finalize(NcclComm* of) {
  auto* const comm = static_cast<Comm*>(of);
  Begun("communicator \"" + comm->name + "\" cannot end", ncclCommFinalize(comm->handle));
  comm->pending = true;
}

void NcclLibrary::Destroy(NcclComm* of) noexcept {
  auto* const comm = static_cast<Comm*>(of);
  if (comm->handle != nullptr) ncclCommDestroy(comm->handle);
  comm->handle = nullptr;
}

void NcclLibrary::Abort(NcclComm* of) noexcept {
  auto* const comm = static_cast<Comm*>(of);
  if (comm->handle != nullptr) ncclCommAbort(comm->handle);
  comm->handle = nullptr;
}

}  // namespace contraflow
