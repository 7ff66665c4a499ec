// Preloaded into a program: counts what it asks of the system from main on, and refuses one thing
// of it once. CONTRAFLOW_INJECT is KIND:N, the N-th call, from 1; 0 refuses nothing. KIND is
//   memory  malloc and its kin, which then find nothing
//   system  files, sockets and threads, which then fail for good
//   signal  the same as far as a signal may interrupt them (EINTR)
// The number of calls becomes the content of the file CONTRAFLOW_INJECT_COUNT.

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* old, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
}

namespace {

enum Kind { kNone, kMemory, kSystem, kSignal };

std::atomic<Kind> kind{kNone};
std::atomic<long> calls{0};
long refused = 0;
int (*real_main)(int, char**, char**);

bool Refuse(Kind of) { return kind.load(std::memory_order_relaxed) == of && ++calls == refused; }

/// Whether to refuse a call, and errno: `error`, or EINTR where a signal may interrupt it.
bool RefuseCall(int error, bool interruptible = false) {
  const bool signal = kind.load(std::memory_order_relaxed) == kSignal;
  if (signal ? !interruptible || !Refuse(kSignal) : !Refuse(kSystem)) return false;
  errno = signal ? EINTR : error;
  return true;
}

template <typename Function>
Function* Next(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

void WriteCount() {
  const char* const path = std::getenv("CONTRAFLOW_INJECT_COUNT");
  kind = kNone;
  if (path == nullptr) return;
  char text[32];
  const int size = std::snprintf(text, sizeof text, "%ld", calls.load());
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd >= 0 && write(fd, text, static_cast<size_t>(size)) == size) close(fd);
}

int CountedMain(int argc, char** argv, char** environment) {
  std::atexit(WriteCount);
  const char* const what = std::getenv("CONTRAFLOW_INJECT");
  const char* const colon = what == nullptr ? nullptr : std::strchr(what, ':');
  if (colon != nullptr) {
    refused = std::atol(colon + 1);
    kind = what[0] == 'm' ? kMemory : what[1] == 'y' ? kSystem : kSignal;
  }
  return real_main(argc, argv, environment);
}

}  // namespace

// A function that can be refused with that error number and, if a signal may interrupt it, EINTR.
#define CF_CALL(type, name, error, interruptible, parameters, arguments) \
  type name parameters {                                                 \
    static const auto next = Next(&name, #name);                         \
    return RefuseCall(error, interruptible) ? (type)-1 : next arguments; \
  }

extern "C" {

int __libc_start_main(int (*main)(int, char**, char**), int argc, char** argv, void (*init)(),
                      void (*fini)(), void (*rtld_fini)(), void* stack_end) {
  real_main = main;
  using Start =
      int(int (*)(int, char**, char**), int, char**, void (*)(), void (*)(), void (*)(), void*);
  auto* const start = reinterpret_cast<Start*>(dlsym(RTLD_NEXT, "__libc_start_main"));
  return start(&CountedMain, argc, argv, init, fini, rtld_fini, stack_end);
}

void* malloc(size_t size) {
  if (!Refuse(kMemory)) return __libc_malloc(size);
  errno = ENOMEM;
  return nullptr;
}
void* calloc(size_t count, size_t size) {
  if (!Refuse(kMemory)) return __libc_calloc(count, size);
  errno = ENOMEM;
  return nullptr;
}
void* realloc(void* old, size_t size) {
  if (!Refuse(kMemory)) return __libc_realloc(old, size);
  errno = ENOMEM;
  return nullptr;
}
void* aligned_alloc(size_t alignment, size_t size) {
  if (!Refuse(kMemory)) return __libc_memalign(alignment, size);
  errno = ENOMEM;
  return nullptr;
}
void* memalign(size_t alignment, size_t size) { return aligned_alloc(alignment, size); }
int posix_memalign(void** result, size_t alignment, size_t size) {
  void* const memory = aligned_alloc(alignment, size);
  if (memory == nullptr) return ENOMEM;
  *result = memory;
  return 0;
}

int open(const char* path, int flags, ...) {
  static const auto next = Next(&open, "open");
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  return RefuseCall(EMFILE, true) ? -1 : next(path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  static const auto next = Next(&openat, "openat");
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  return RefuseCall(EMFILE, true) ? -1 : next(folder, path, flags, mode);
}
int close(int fd) {
  static const auto next = Next(&close, "close");
  const int result = next(fd);
  return RefuseCall(EIO, true) ? -1 : result;
}
// No file is flushed and no thread waits for the rest of the machine: there are many cases.
int fsync(int) { return RefuseCall(EIO, true) ? -1 : 0; }
int setpriority(__priority_which_t, id_t, int) { return RefuseCall(EPERM) ? -1 : 0; }
struct dirent* readdir(DIR* folder) {
  static const auto next = Next(&readdir, "readdir");
  return RefuseCall(EIO) ? nullptr : next(folder);
}
char* realpath(const char* path, char* result) {
  static const auto next = Next(&realpath, "realpath");
  return RefuseCall(EACCES) ? nullptr : next(path, result);
}
size_t fwrite(const void* from, size_t size, size_t count, FILE* file) {
  static const auto next = Next(&fwrite, "fwrite");
  return file == stdout && RefuseCall(ENOSPC) ? 0 : next(from, size, count, file);
}
int fflush(FILE* file) {
  static const auto next = Next(&fflush, "fflush");
  return file == stdout && RefuseCall(ENOSPC) ? EOF : next(file);
}
int getaddrinfo(const char* host, const char* port, const struct addrinfo* hints,
                struct addrinfo** found) {
  static const auto next = Next(&getaddrinfo, "getaddrinfo");
  return RefuseCall(EIO) ? EAI_SYSTEM : next(host, port, hints, found);
}
CF_CALL(ssize_t, read, EIO, true, (int fd, void* to, size_t size), (fd, to, size))
CF_CALL(ssize_t, __read_chk, EIO, true, (int fd, void* to, size_t size, size_t room),
        (fd, to, size, room))
CF_CALL(ssize_t, pread, EIO, true, (int fd, void* to, size_t size, off_t at), (fd, to, size, at))
CF_CALL(ssize_t, __pread_chk, EIO, true, (int fd, void* to, size_t size, off_t at, size_t room),
        (fd, to, size, at, room))
CF_CALL(ssize_t, write, ENOSPC, true, (int fd, const void* from, size_t size), (fd, from, size))
CF_CALL(ssize_t, pwrite, ENOSPC, true, (int fd, const void* from, size_t size, off_t at),
        (fd, from, size, at))
CF_CALL(int, ftruncate, EIO, true, (int fd, off_t size), (fd, size))
CF_CALL(int, flock, ENOLCK, true, (int fd, int operation), (fd, operation))
CF_CALL(int, dup, EMFILE, false, (int fd), (fd))
CF_CALL(int, rename, EACCES, false, (const char* from, const char* to), (from, to))
CF_CALL(int, renameat2, EACCES, false,
        (int a, const char* from, int b, const char* to, unsigned flags), (a, from, b, to, flags))
CF_CALL(int, mkdir, ENOSPC, false, (const char* path, mode_t mode), (path, mode))
CF_CALL(int, stat, EACCES, false, (const char* path, struct stat* status), (path, status))
CF_CALL(int, lstat, EACCES, false, (const char* path, struct stat* status), (path, status))
CF_CALL(int, fstat, EIO, false, (int fd, struct stat* status), (fd, status))
CF_CALL(int, access, EACCES, false, (const char* path, int mode), (path, mode))
CF_CALL(int, fchmod, EPERM, false, (int fd, mode_t mode), (fd, mode))
CF_CALL(void*, mmap, ENOMEM, false,
        (void* address, size_t size, int protection, int flags, int fd, off_t offset),
        (address, size, protection, flags, fd, offset))
CF_CALL(int, gethostname, EPERM, false, (char* name, size_t size), (name, size))
CF_CALL(int, eventfd, EMFILE, false, (unsigned value, int flags), (value, flags))
CF_CALL(int, timer_create, EAGAIN, false, (clockid_t clock, struct sigevent* event, timer_t* timer),
        (clock, event, timer))
CF_CALL(ssize_t, getrandom, ENOSYS, true, (void* to, size_t size, unsigned flags),
        (to, size, flags))
CF_CALL(int, socket, EMFILE, false, (int domain, int type, int protocol), (domain, type, protocol))
CF_CALL(int, bind, EADDRINUSE, false, (int fd, const struct sockaddr* address, socklen_t size),
        (fd, address, size))
CF_CALL(int, listen, EADDRINUSE, false, (int fd, int backlog), (fd, backlog))
CF_CALL(int, connect, ECONNREFUSED, true, (int fd, const struct sockaddr* address, socklen_t size),
        (fd, address, size))
CF_CALL(int, accept4, EMFILE, true, (int fd, struct sockaddr* address, socklen_t* size, int flags),
        (fd, address, size, flags))
CF_CALL(int, getsockname, ENOBUFS, false, (int fd, struct sockaddr* address, socklen_t* size),
        (fd, address, size))
CF_CALL(int, getpeername, ENOTCONN, false, (int fd, struct sockaddr* address, socklen_t* size),
        (fd, address, size))
CF_CALL(int, getsockopt, ENOBUFS, false, (int fd, int level, int name, void* to, socklen_t* size),
        (fd, level, name, to, size))
CF_CALL(int, setsockopt, ENOBUFS, false,
        (int fd, int level, int name, const void* from, socklen_t size),
        (fd, level, name, from, size))
CF_CALL(int, shutdown, ENOTCONN, false, (int fd, int how), (fd, how))
CF_CALL(ssize_t, recv, ECONNRESET, true, (int fd, void* to, size_t size, int flags),
        (fd, to, size, flags))
CF_CALL(ssize_t, __recv_chk, ECONNRESET, true,
        (int fd, void* to, size_t size, size_t room, int flags), (fd, to, size, room, flags))
CF_CALL(ssize_t, send, EPIPE, true, (int fd, const void* from, size_t size, int flags),
        (fd, from, size, flags))
CF_CALL(int, poll, ENOMEM, true, (struct pollfd * fds, nfds_t count, int timeout),
        (fds, count, timeout))
CF_CALL(int, __poll_chk, ENOMEM, true,
        (struct pollfd * fds, nfds_t count, int timeout, size_t room), (fds, count, timeout, room))
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) {
  static const auto next = Next(&pthread_create, "pthread_create");
  return RefuseCall(EAGAIN) ? EAGAIN : next(thread, attributes, start, argument);
}

}  // extern "C"
