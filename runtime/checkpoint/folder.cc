#include "runtime/checkpoint/folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <optional>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

constexpr std::string_view kStep = "step-", kShard = "shard-";
constexpr std::string_view kNew = ".new", kOld = ".old", kGone = ".gone";

std::string Numbered(std::string_view prefix, int number, size_t digits) {
  std::string text = std::to_string(number);
  text.insert(0, digits - std::min(digits, text.size()), '0');
  return std::string(prefix) + text;
}

/// The step whose StepName this is.
std::optional<int> StepOf(std::string_view name) {
  if (name.substr(0, kStep.size()) != kStep) return std::nullopt;
  const std::string_view digits = name.substr(kStep.size());
  int step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size() || step < 0) return std::nullopt;
  // One step has one name.
  return StepName(step) == name ? std::optional(step) : std::nullopt;
}

/// The step of a hidden folder with this ending.
std::optional<int> HiddenStepOf(std::string_view name, std::string_view ending) {
  if (name.size() < 1 + ending.size() || name[0] != '.') return std::nullopt;
  if (name.substr(name.size() - ending.size()) != ending) return std::nullopt;
  return StepOf(name.substr(1, name.size() - 1 - ending.size()));
}

std::string Hidden(const std::string& directory, int step, std::string_view ending) {
  return directory + "/." + StepName(step) + std::string(ending);
}

bool Exists(const std::string& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0;
}

/// Under a name that no reader takes for anything, then for good.
void RemoveAside(const std::string& directory, int step, const std::string& path) {
  const std::string gone = Hidden(directory, step, kGone);
  RemoveTree(gone);
  RenameFile(path, gone);
  RemoveTree(gone);
}

}  // namespace

std::string StepName(int step) { return Numbered(kStep, step, 8); }
std::string ShardName(int shard) { return Numbered(kShard, shard, 4); }

std::string AsideOf(const std::string& directory, int step) {
  return Hidden(directory, step, kNew);
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
    // Of a step that has no other, if it was killed between two renames.
    if (const auto old = HiddenStepOf(name, kOld)) steps.emplace(*old, path);
  }
  return steps;
}

void Publish(const std::string& directory, int step, bool exchange) {
  const std::string aside = AsideOf(directory, step), path = directory + "/" + StepName(step);
  if (!Exists(path)) {
    RenameFile(aside, path);
    return FlushFolder(directory);
  }
  const std::string old = Hidden(directory, step, kOld);
  if (exchange &&
      renameat2(AT_FDCWD, aside.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) {
    FlushFolder(directory);
    return RemoveAside(directory, step, aside);
  }
  // `path` is there, so this one is none that counts.
  RemoveTree(old);
  RenameFile(path, old);
  RenameFile(aside, path);
  FlushFolder(directory);
  RemoveAside(directory, step, old);
}

void RemoveStep(const std::string& directory, int step) {
  RemoveAside(directory, step, directory + "/" + StepName(step));
}

void RemoveLeftovers(const std::string& directory) {
  for (const std::string& name : NamesInFolder(directory)) {
    const std::string path = directory + "/" + name;
    if (const auto step = HiddenStepOf(name, kOld)) {
      const std::string complete = directory + "/" + StepName(*step);
      if (Exists(complete)) {
        RemoveAside(directory, *step, path);
      } else {
        RenameFile(path, complete);
      }
    } else if (HiddenStepOf(name, kNew) || HiddenStepOf(name, kGone)) {
      RemoveTree(path);
    }
  }
}

}  // namespace contraflow
