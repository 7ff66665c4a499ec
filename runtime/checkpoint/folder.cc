#include "runtime/checkpoint/folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <optional>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

constexpr std::string_view kStep = "step-", kShard = "shard-";
constexpr std::string_view kNew = ".new", kOld = ".old";

std::string Numbered(std::string_view prefix, int number, size_t digits) {
  std::string text = std::to_string(number);
  text.insert(0, digits - std::min(digits, text.size()), '0');
  return std::string(prefix) + text;
}

/// The step of a name between these, as StepName has it.
std::optional<int> StepOf(std::string_view name, std::string_view before = "",
                          std::string_view behind = "") {
  if (!name.starts_with(before) || !name.ends_with(behind)) return std::nullopt;
  name = name.substr(before.size(), name.size() - before.size() - behind.size());
  if (!name.starts_with(kStep)) return std::nullopt;
  int step = -1;
  std::from_chars(name.data() + kStep.size(), name.data() + name.size(), step);
  // One step has one name.
  return step >= 0 && StepName(step) == name ? std::optional(step) : std::nullopt;
}

std::string Hidden(const std::string& directory, int step, std::string_view ending) {
  return directory + "/." + StepName(step) + std::string(ending);
}

bool Exists(const std::string& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0;
}

}  // namespace

std::string StepName(int step) { return Numbered(kStep, step, 8); }
std::string ShardName(int shard) { return Numbered(kShard, shard, 4); }
std::string NoteName(int shard) { return "." + ShardName(shard) + ".note"; }

std::string AsideOf(const std::string& directory, int step) {
  return Hidden(directory, step, kNew);
}

FolderLock::FolderLock(const std::string& directory)
    : file_(OpenFile(directory + "/.lock", O_RDWR | O_CREAT | O_NOFOLLOW, 0666)) {
  if (file_.get() < 0) throw FileError(directory + "/.lock", "cannot be locked", errno);
  char holder[128] = "";
  while (flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return;  // This file system has no locks.
    const ssize_t size = pread(file_.get(), holder, sizeof holder - 1, 0);
    for (ssize_t i = 0; i < size; ++i) {
      if (holder[i] < ' ' || holder[i] > '~') holder[i] = '?';
    }
    throw Error(directory + ": is in use by another job (" + (size > 0 ? holder : "of a process") +
                "); wait until it ends, or use another folder");
  }
  char host[64] = "";
  if (gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  const int size = std::snprintf(holder, sizeof holder, "process %d on %s", getpid(), host);
  // On a full disk it stays as it was: it is the lock that counts.
  if (TruncateFile(file_.get(), 0) == 0 &&
      pwrite(file_.get(), holder, static_cast<size_t>(size), 0) < 0) {
    return;
  }
}

std::string RemedyFor(int error) {
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return "; make room, or use another `checkpoint` folder: earlier checkpoints are intact";
  }
  if (error == EACCES || error == EPERM || error == EROFS) {
    return "; use a `checkpoint` folder of your own";
  }
  if (error == EEXIST) return "; do two jobs write to the same `checkpoint` folder?";
  if (error == ENOTDIR) return "; a file stands where a folder should be";
  if (error == ENOENT) {
    return "; was it removed meanwhile, or is it a folder that other machines do not see?";
  }
  if (error == EIO || error == ESTALE) return "; the disk or its server is failing";
  return "";
}

std::map<int, std::string> CompleteSteps(const std::string& directory) {
  std::map<int, std::string> steps;
  for (const std::string& name : WithRemedy([&] { return NamesInFolder(directory); })) {
    const std::string path = directory + "/" + name;
    if (const auto step = StepOf(name)) steps[*step] = path;
    // A step may have no other, if it was killed between two renames.
    if (const auto old = StepOf(name, ".", kOld)) steps.emplace(*old, path);
  }
  return steps;
}

void Publish(const std::string& directory, int step) {
  const std::string path = directory + "/" + StepName(step), old = Hidden(directory, step, kOld);
  const bool again = Exists(path);
  if (again) {
    // `path` is there, so an old one is none that counts.
    RemoveTree(old);
    RenameFile(path, old);
  }
  RenameFile(AsideOf(directory, step), path);
  FlushFolder(directory);
  if (again) RemoveTree(old);
}

void RemoveStep(const std::string& directory, int step) {
  // First renames it to a name that readers ignore.
  const std::string aside = AsideOf(directory, step);
  RemoveTree(aside);
  RenameFile(directory + "/" + StepName(step), aside);
  RemoveTree(aside);
}

void RemoveLeftovers(const std::string& directory) {
  for (const std::string& name : NamesInFolder(directory)) {
    const std::string path = directory + "/" + name;
    const auto old = StepOf(name, ".", kOld);
    if (old && !Exists(directory + "/" + StepName(*old))) {
      RenameFile(path, directory + "/" + StepName(*old));
    } else if (old || StepOf(name, ".", kNew)) {
      RemoveTree(path);
    }
  }
}

}  // namespace contraflow
