#include "tools/profile/profile.h"

#include <algorithm>
#include <array>

#include "compiler/files/file.h"
#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "tools/profile/gzip.h"

namespace contraflow {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 30;

constexpr std::array<std::string_view, 5> kForms = {"kineto", "megatron-log", "nvtx-csv", "trace",
                                                    "csv"};

/// Form by what only one of them has; nothing if it has none of it.
std::optional<ProfileForm> FormOf(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return std::nullopt;
  // A line of a log may begin with a bracket, too.
  const size_t second = text.find_first_not_of(" \t\r\n", first + 1);
  const bool list = text[first] == '[' && second != std::string_view::npos &&
                    std::string_view("[]{").find(text[second]) != std::string_view::npos;
  if (text[first] == '{' || list) return ProfileForm::kKineto;
  if (text.find("forward-compute") != std::string_view::npos) return ProfileForm::kMegatronLog;
  if (text.find("(ns)") != std::string_view::npos ||
      text.find("Duration") != std::string_view::npos) {
    return ProfileForm::kNvtxCsv;
  }
  const std::string_view line = text.substr(first, text.find('\n', first) - first);
  if (line.find("op") != std::string_view::npos && line.find(',') != std::string_view::npos) {
    return ProfileForm::kCsv;
  }
  return std::nullopt;
}

}  // namespace

std::string_view Name(ProfileForm form) { return kForms[static_cast<size_t>(form)]; }

ProfileForm ParseProfileForm(std::string_view name) {
  const auto found = std::find(kForms.begin(), kForms.end(), name);
  if (found == kForms.end()) {
    const std::string shown(name.substr(0, 64));
    throw Error("unknown form \"" + shown + "\"" + DidYouMean(shown, kForms) + "; forms are " +
                kProfileForms);
  }
  return static_cast<ProfileForm>(found - kForms.begin());
}

FileSamples ReadProfileText(std::string_view text, const std::string& place,
                            const ProfileOptions& options) {
  const std::optional<ProfileForm> form = options.from ? options.from : FormOf(text);
  if (!form) {
    throw Error(place + ": is in none of the forms " + kProfileForms +
                (text.empty() ? "; it is empty" : "; say with `from` which it is"));
  }
  LogShape shape = options.log;
  if (options.plan) {
    shape = {.ranks = options.plan->ranks,
             .chunks = std::max(1, options.plan->stages / std::max(1, options.plan->ranks)),
             .microbatches = options.plan->microbatches};
  }
  switch (*form) {
    case ProfileForm::kMegatronLog:
      return ReadMegatronSamples(text, place, shape);
    case ProfileForm::kNvtxCsv:
      return ReadNvtxSamples(text, place);
    case ProfileForm::kCsv:
      return ReadTableSamples(text, place);
    case ProfileForm::kKineto:
    case ProfileForm::kTrace:
      break;
  }
  return ReadTraceSamples(text, place);
}

FileSamples ReadProfile(const std::string& path, const ProfileOptions& options) {
  const std::string place = path == "-" ? "standard input" : path;
  InputFile file(path, kMostBytes);
  const std::string_view beginning = file.Beginning();
  if (!IsGzip(beginning) && beginning.find('\0') != std::string_view::npos) {
    throw Error(place + ": is in none of the forms " + kProfileForms + "; it is no text");
  }
  std::string text;
  file.ReadRest(&text);
  if (IsGzip(text)) text = Gunzip(text, kMostBytes, place);
  return ReadProfileText(text, place, options);
}

ProfiledCosts Profile(const std::vector<std::string>& paths, const ProfileOptions& options) {
  std::vector<FileSamples> files;
  for (const std::string& path : paths) files.push_back(ReadProfile(path, options));
  return CostsOfSamples(files, options);
}

}  // namespace contraflow
