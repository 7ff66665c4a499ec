#include "tools/contraflow-run/step_log.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "compiler/files/file.h"
#include "compiler/plan/error.h"
#include "tools/cli/terminal.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

constexpr int64_t kMaxLogBytes = int64_t{1} << 32;
constexpr std::string_view kBegin = "{\"step\": ";
constexpr size_t kMostColumns = 512;
constexpr int kPlotLines = 8, kPlotLabel = 11;

/// How much of a log are whole lines of steps up to `done`; -1 if it is none.
int64_t KeptBytes(std::string_view log, int done) {
  size_t kept = 0;
  while (kept < log.size()) {
    const std::string_view line = log.substr(kept, log.find('\n', kept) - kept);
    const bool torn = kept + line.size() == log.size();
    int step = 0;
    const bool begins = line.starts_with(kBegin);
    if (begins) std::from_chars(line.data() + kBegin.size(), line.data() + line.size(), step);
    if (step < 1 && !(torn && (begins || kBegin.starts_with(line)))) return -1;
    if (torn || step > done) break;
    kept += line.size() + 1;
  }
  return static_cast<int64_t>(kept);
}

}  // namespace

StepFile::StepFile(const std::string& path, int done)
    : path_(path), file_(OpenFile(path, O_WRONLY | O_CREAT | O_APPEND, 0666)) {
  struct stat status = {};
  if (file_.get() < 0 || fstat(file_.get(), &status) != 0)
    throw FileError(path, "cannot be written", errno);
  if (!S_ISREG(status.st_mode)) return;  // a pipe keeps nothing
  const int64_t kept = KeptBytes(ReadFile(path, kMaxLogBytes), done);
  if (kept < 0) {
    throw Error("`jsonl` " + path +
                ": has something else than the steps of a training; name another file");
  }
  if (TruncateFile(file_.get(), kept) != 0) throw FileError(path, "cannot be written", errno);
}

void StepFile::Add(const Json& row) {
  std::string line;
  WriteJson(row, &line);
  line += '\n';
  CF_ASSERT(line.starts_with(kBegin));
  ssize_t written = 0;
  do written = write(file_.get(), line.data(), line.size());
  while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(line.size())) return;
  const int error = written < 0 ? errno : ENOSPC;
  struct stat status = {};
  if (written > 0 && fstat(file_.get(), &status) == 0 && S_ISREG(status.st_mode)) {
    static_cast<void>(!TruncateFile(file_.get(), status.st_size - written));
  }
  if (!failed_) {
    std::fprintf(stderr, "contraflow-run: %s: cannot be written: %s; steps are missing there\n",
                 Legible(path_).c_str(), std::strerror(error));
  }
  failed_ = true;
}

void LossPlot::Add(double loss) {
  if (sums_.empty() || last_ == each_) {
    if (sums_.size() == kMostColumns) {
      for (size_t i = 0; i < kMostColumns / 2; ++i) sums_[i] = sums_[2 * i] + sums_[2 * i + 1];
      sums_.resize(kMostColumns / 2);
      each_ *= 2;
    }
    sums_.push_back(0);
    last_ = 0;
  }
  sums_.back() += loss;
  ++last_;
}

std::string LossPlot::Draw(int width) const {
  const size_t steps = sums_.empty() ? 0 : (sums_.size() - 1) * each_ + last_;
  if (steps < 2 || width <= kPlotLabel) return "";
  const size_t columns = std::min(sums_.size(), static_cast<size_t>(width - kPlotLabel));
  std::vector<double> means;
  for (size_t c = 0; c < columns; ++c) {
    const size_t begin = c * sums_.size() / columns, end = (c + 1) * sums_.size() / columns;
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += sums_[i];
    const size_t short_of = end == sums_.size() ? each_ - last_ : 0;
    means.push_back(sum / static_cast<double>((end - begin) * each_ - short_of));
  }
  const auto [least, most] = std::minmax_element(means.begin(), means.end());
  const double range = std::max(*most - *least, 1e-12);
  std::string plot = "\n";
  for (int line = kPlotLines - 1; line >= 0; --line) {
    char label[32] = "";
    if (line == kPlotLines - 1) std::snprintf(label, sizeof label, "%8.4f", *most);
    if (line == 0) std::snprintf(label, sizeof label, "%8.4f", *least);
    char margin[48];
    std::snprintf(margin, sizeof margin, "%*s \u2502", kPlotLabel - 3, label);
    plot += margin;
    for (const double mean : means) {
      // Eighths of a line; the least one has one.
      const auto eighths =
          1 + std::lround((mean - *least) / range * (8 * kPlotLines - 1)) - 8 * line;
      if (eighths <= 0) {
        plot += ' ';
        continue;
      }
      // U+2581 to U+2588: one to eight eighths.
      plot += "\u2581";
      plot.back() = static_cast<char>(0x80 + std::min(eighths, 8L));
    }
    plot += '\n';
  }
  return plot + "loss over " + FormatCount(static_cast<int64_t>(steps)) + " steps\n";
}

int TerminalWidth() {
  if (isatty(STDOUT_FILENO) == 0) return 0;
  winsize size = {};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace contraflow
