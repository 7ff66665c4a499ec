#include "compiler/files/folder.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <system_error>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void FailWrite(const std::string& name, const std::error_code& error) {
  const bool missing = error == std::errc::no_such_file_or_directory;
  throw Error(name + ": cannot be written: " + error.message() +
              (missing ? "; does the folder that it is to be in exist?" : ""));
}

/// Without the slashes at the end, which would make the parent of "a/" be "a".
std::string Trimmed(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

/// A name beside `target` that nothing has.
std::string NameBeside(const std::string& target) {
  static std::atomic<unsigned> counter{0};
  const size_t slash = target.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : target.substr(0, slash + 1);
  for (;;) {
    std::string name = folder + ".contraflow-" + std::to_string(getpid()) + "-" +
                       std::to_string(counter.fetch_add(1)) + ".tmp";
    std::error_code error;
    if (fs::symlink_status(name, error).type() == fs::file_type::not_found) return name;
  }
}

}  // namespace

bool IsFolder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

std::vector<std::string> NamesInFolder(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator at(path, error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  if (error) throw Error(path + ": cannot be read: " + error.message());
  std::sort(names.begin(), names.end());
  return names;
}

std::string PathIn(const std::string& folder, std::string_view name) {
  return Trimmed(folder) + "/" + std::string(name);
}

NewFolder::NewFolder(const std::string& target)
    : target_(Trimmed(target)), path_(NameBeside(target_)) {
  std::error_code error;
  fs::create_directory(path_, error);
  if (error) FailWrite(target, error);
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

void NewFolder::Keep() {
  std::error_code error;
  std::string old;
  if (IsFolder(target_)) {
    old = NameBeside(target_);
    fs::rename(target_, old, error);
    if (error) FailWrite(target_, error);
  }
  fs::rename(path_, target_, error);
  if (error) {
    std::error_code ignored;
    if (!old.empty()) fs::rename(old, target_, ignored);
    FailWrite(target_, error);
  }
  // From here on the destructor has the old one to remove.
  path_ = old;
}

}  // namespace contraflow
