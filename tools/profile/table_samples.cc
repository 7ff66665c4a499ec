#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"
#include "tools/profile/samples.h"

namespace contraflow {
namespace {

constexpr size_t kMaxColumns = 64;
/// How often a range of a summary counts at most.
constexpr int64_t kMostInstances = 1024;

using CsvRow = std::vector<std::string>;

/// CSV row by row; a field in quotes may have commas, line ends and doubled quotes.
class CsvRows {
 public:
  CsvRows(std::string_view text, const std::string& place) : text_(text), place_(place) {}

  /// False at the end.
  bool Next(CsvRow* row) {
    if (at_ >= text_.size()) return false;
    row->assign(1, "");
    ++line_;
    first_ = line_;
    bool quoted = false;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') ++line_;
      if (quoted) {
        if (c != '"') {
          row->back() += c;
        } else if (at_ + 1 < text_.size() && text_[at_ + 1] == '"') {
          row->back() += c;
          ++at_;
        } else {
          quoted = false;
        }
      } else if (c == '"') {
        quoted = true;
      } else if (c == ',') {
        row->emplace_back();
        if (row->size() > kMaxColumns)
          Fail("has more than " + std::to_string(kMaxColumns) + " columns");
      } else if (c == '\n') {
        --line_;
        break;
      } else if (c != '\r') {
        row->back() += c;
      }
    }
    if (quoted) Fail("a quote is not closed");
    ++at_;
    return true;
  }

  [[noreturn]] void Fail(const std::string& what) const {
    throw Error(place_ + ":" + std::to_string(first_) + ": " + what);
  }

 private:
  const std::string_view text_;
  const std::string& place_;
  size_t at_ = 0, line_ = 0, first_ = 0;
};

/// "Duration (ns)": name and unit.
struct CsvColumn {
  std::string name;
  double us = 1;  ///< of its unit
};

/// Returns nothing for a unit that is none.
std::optional<CsvColumn> ParseColumn(std::string_view text) {
  text = TrimBlanks(text);
  CsvColumn column{.name = std::string(text)};
  const size_t open = text.rfind(" (");
  if (open == std::string_view::npos || !text.ends_with(')')) return column;
  const std::string_view unit = text.substr(open + 2, text.size() - open - 3);
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"ns", 1e-3}, {"us", 1}, {"\xC2\xB5s", 1}, {"ms", 1e3}, {"s", 1e6}, {"sec", 1e6}};
  for (const auto& [name, us] : kUnits) {
    if (unit != name) continue;
    return CsvColumn{.name = std::string(text.substr(0, open)), .us = us};
  }
  return std::nullopt;
}

/// Returns nothing if the text is no finite number.
std::optional<double> ParseReal(std::string_view text) {
  text = TrimBlanks(text);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

/// A time in microseconds; a day is the most.
double ReadMicroseconds(const CsvRows& rows, const std::string& field, double us) {
  const std::optional<double> value = ParseReal(field);
  constexpr double kDay = 24 * 3600e6;
  if (!value || !(*value >= 0) || *value * us > kDay) {
    rows.Fail("the time must be a number >= 0, up to a day, is " + Excerpt(field) +
              "; its unit is in the head, as in \"time (ms)\"");
  }
  return *value * us;
}

int ReadIndex(const CsvRows& rows, const char* what, const std::string& field, int limit) {
  const std::optional<double> value = ParseReal(field);
  if (!value || *value < 0 || *value >= limit || *value != std::floor(*value)) {
    rows.Fail(std::string("the ") + what + " must be a whole number in 0.." +
              std::to_string(limit - 1) + ", is " + Excerpt(field));
  }
  return static_cast<int>(*value);
}

/// Places of the named columns, -1 for those that are not there.
struct TableHead {
  int stage = -1, op = -1, time = -1, microbatch = -1, step = -1;
  double us = 1;
};

TableHead ReadHead(const CsvRows& rows, const CsvRow& row) {
  TableHead head;
  const std::pair<std::string_view, int*> known[] = {{"stage", &head.stage},
                                                     {"op", &head.op},
                                                     {"time", &head.time},
                                                     {"microbatch", &head.microbatch},
                                                     {"step", &head.step}};
  for (size_t i = 0; i < row.size(); ++i) {
    const std::optional<CsvColumn> column = ParseColumn(row[i]);
    if (!column) rows.Fail(Excerpt(row[i]) + ": units are ns, us, ms and s");
    const auto found = std::find_if(std::begin(known), std::end(known),
                                    [&](const auto& k) { return k.first == column->name; });
    if (found == std::end(known) || *found->second >= 0) {
      rows.Fail("unknown or doubled column " + Excerpt(row[i]) +
                "; columns are stage, op, time (with its unit, as in \"time (ms)\"), microbatch "
                "and step");
    }
    *found->second = static_cast<int>(i);
    if (column->name == "time") head.us = column->us;
  }
  if (head.stage < 0 || head.op < 0 || head.time < 0) {
    rows.Fail("must name the columns stage, op and time");
  }
  return head;
}

constexpr Op kTableOps[] = {Op::F, Op::B, Op::W, Op::BW, Op::FB, Op::R, Op::REDUCE, Op::STEP};

}  // namespace

FileSamples ReadTableSamples(std::string_view text, const std::string& place) {
  FileSamples file;
  file.place = place;
  CsvRows rows(text, place);
  CsvRow row;
  if (!rows.Next(&row)) throw Error(place + ": is empty");
  const TableHead head = ReadHead(rows, row);
  const size_t columns = row.size();
  while (rows.Next(&row)) {
    if (row.size() == 1 && TrimBlanks(row[0]).empty()) continue;
    if (row.size() != columns) {
      rows.Fail("must have " + std::to_string(columns) + " columns, has " +
                std::to_string(row.size()));
    }
    const auto field = [&](int column) { return row[static_cast<size_t>(column)]; };
    const double time = ReadMicroseconds(rows, field(head.time), head.us);
    const std::string op(TrimBlanks(field(head.op)));
    Sample sample{.what = {}, .time = time};
    if (op == "COMM") {
      sample.what.op = Op::SEND_F;
      file.samples.push_back(sample);
      continue;
    }
    const auto known = std::find_if(std::begin(kTableOps), std::end(kTableOps),
                                    [&](Op o) { return op == Name(o); });
    if (known == std::end(kTableOps)) {
      rows.Fail("unknown op " + Excerpt(op) + "; ops are F B W BW FB R REDUCE STEP and COMM");
    }
    sample.what.op = *known;
    sample.what.stage = ReadIndex(rows, "stage", field(head.stage), kMaxStages);
    if (*known == Op::FB) sample.what.back_stage = sample.what.stage;
    if (head.microbatch >= 0) {
      sample.what.microbatch =
          ReadIndex(rows, "microbatch", field(head.microbatch), kMaxMicrobatches);
    }
    if (head.step >= 0) sample.step = ReadIndex(rows, "step", field(head.step), kMaxMicrobatches);
    file.samples.push_back(sample);
  }
  if (head.step < 0) NumberSteps(&file);
  return file;
}

FileSamples ReadNvtxSamples(std::string_view text, const std::string& place) {
  FileSamples file;
  file.place = place;
  CsvRows rows(text, place);
  CsvRow row;
  int name = -1, time = -1, count = -1;
  double us = 1;
  std::string kind;
  // nsys prints lines of its own before the table.
  while (name < 0 || time < 0) {
    if (!rows.Next(&row)) {
      throw Error(place +
                  ": has no table of ranges; give the CSV of nsys stats --report "
                  "nvtx_gpu_proj_trace, or of nvtx_pushpop_trace, --format csv");
    }
    name = time = count = -1;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::optional<CsvColumn> column = ParseColumn(row[i]);
      if (!column) continue;
      const std::string& title = column->name;
      if (title == "Name" || title == "Range") name = static_cast<int>(i);
      if (title == "Instances" || title == "Range Instances") count = static_cast<int>(i);
      // Times on the device count, else those of the host.
      const bool device = title == "Projected Duration" || title == "Proj Med";
      if (!device && title != "Duration" && title != "Med") continue;
      if (time >= 0 && !device) continue;
      time = static_cast<int>(i);
      us = column->us;
      kind = title;
    }
  }
  if (kind == "Duration" || kind == "Med") {
    file.notes.push_back(
        "times are of the host, with its waits; nvtx_gpu_proj_trace has the device's");
  }
  const auto columns = static_cast<size_t>(std::max({name, time, count}) + 1);
  while (rows.Next(&row)) {
    if (row.size() < columns) continue;
    const std::string& range = row[static_cast<size_t>(name)];
    const auto what = ParseRange(range);
    if (!what) {
      AddUnmapped(range, &file);
      continue;
    }
    if (IsMessage(what->op)) continue;
    int64_t times = 1;
    if (count >= 0) {
      times = std::clamp<int64_t>(
          static_cast<int64_t>(ParseReal(row[static_cast<size_t>(count)]).value_or(1)), 1,
          kMostInstances);
    }
    const Sample sample{.what = *what,
                        .time = ReadMicroseconds(rows, row[static_cast<size_t>(time)], us)};
    file.samples.insert(file.samples.end(), static_cast<size_t>(times), sample);
  }
  NumberSteps(&file);
  return file;
}

}  // namespace contraflow
