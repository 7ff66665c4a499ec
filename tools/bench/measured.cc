// Published measurements next to the predictions of the estimator, with its defaults and with one
// number calibrated.

#include "tools/bench/measured.h"

#include <cmath>
#include <cstdio>
#include <map>
#include <tuple>
#include <utility>

#include "compiler/plan/error.h"
#include "tools/bench/bench.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

constexpr double kGibibyte = 1 << 30;

std::string Format(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

/// Errors of one class of rows, as shares of what was measured.
struct Errors {
  int rows = 0;
  double sum = 0, worst = 0;

  void Add(double error) {
    ++rows;
    sum += std::abs(error);
    if (std::abs(error) > std::abs(worst)) worst = error;
  }
  void Print(std::vector<std::string>* cells) const {
    cells->push_back(std::to_string(rows));
    cells->push_back(rows == 0 ? "-" : Format("%.1f", 100 * sum / rows));
    cells->push_back(rows == 0 ? "-" : Format("%+.1f", 100 * worst));
  }
};

/// Pairs of schedules whose measured steps differ by more than a tie, and how they are predicted.
struct Order {
  int pairs = 0, right = 0, ties = 0;

  void Add(double measured, double predicted) {
    constexpr double kTie = 0.02;
    if (std::abs(measured - 1) <= kTie) return;
    ++pairs;
    if (std::abs(predicted - 1) <= kTie) {
      ++ties;
    } else if ((measured > 1) == (predicted > 1)) {
      ++right;
    }
  }
  std::string Text() const {
    if (pairs == 0) return "-";
    return std::to_string(right) + " + " + std::to_string(ties) + " of " + std::to_string(pairs);
  }
};

/// Errors of a table.
struct TableErrors {
  Errors defaults, calibrated, memory;
  Order order;
};

bool SameButSchedule(const MeasuredRow& a, const MeasuredRow& b) {
  const auto key = [](const MeasuredRow& row) {
    return std::tie(row.model, row.gpu, row.gpus, row.tp, row.cp, row.pp, row.ep, row.etp,
                    row.microbatches, row.micro_batch, row.sequence, row.fp8);
  };
  return key(a) == key(b) && std::tie(a.schedule, a.chunks) != std::tie(b.schedule, b.chunks);
}

class Measurement {
 public:
  Measurement(const std::vector<MeasuredTable>& tables, std::string models)
      : tables_(tables), models_(std::move(models)) {}

  void Run(const BenchOptions& options) {
    Table summary = {.columns = {"table", ">steps", ">mean %", ">worst %", ">calibrated", ">mean %",
                                 ">worst %", ">memories", ">mean %", ">worst %", ">order"},
                     .rows = {}};
    TableErrors all;
    for (const MeasuredTable& table : tables_) {
      Table rows = {.columns = {"row", ">ms", ">measured", ">%", ">calibrated %", ">GiB",
                                ">measured", ">%", ""},
                    .rows = {}};
      TableErrors errors;
      steps_.clear();
      for (const MeasuredRow& row : table.rows) {
        if (!options.Takes(table.name + "/" + row.name)) continue;
        rows.rows.push_back(CellsOf(table, row, {&errors, &all}));
      }
      if (rows.rows.empty()) continue;
      if (options.each) {
        std::printf("%s\n%s\n", table.title.c_str(), FormatTable(rows, std::nullopt).c_str());
      }
      summary.rows.push_back(SummaryOf(table.name, errors));
    }
    summary.rows.push_back(SummaryOf("all", all));
    std::fputs(FormatTable(summary, std::nullopt).c_str(), stdout);
  }

 private:
  static std::vector<std::string> SummaryOf(const std::string& name, const TableErrors& errors) {
    std::vector<std::string> cells = {name};
    errors.defaults.Print(&cells);
    errors.calibrated.Print(&cells);
    errors.memory.Print(&cells);
    cells.push_back(errors.order.Text());
    return cells;
  }

  std::vector<std::string> CellsOf(const MeasuredTable& table, const MeasuredRow& row,
                                   std::initializer_list<TableErrors*> errors) {
    if (!row.left_out.empty()) {
      return {row.name, "", "", "", "", "", "", "", "left out: " + row.left_out};
    }
    const Predicted predicted = Predict(row, models_);
    std::vector<std::string> cells(9);
    cells[0] = row.name;
    if (row.seconds) {
      const double error = predicted.seconds / *row.seconds - 1;
      cells[1] = Format("%.1f", 1e3 * predicted.seconds);
      cells[2] = Format("%.1f", 1e3 * *row.seconds);
      cells[3] = Format("%+.1f", 100 * error);
      for (TableErrors* each : errors) each->defaults.Add(error);
      for (const auto& [other, seconds] : steps_) {
        if (!SameButSchedule(row, *other)) continue;
        for (TableErrors* each : errors) {
          each->order.Add(*row.seconds / *other->seconds, predicted.seconds / seconds);
        }
      }
      steps_.emplace_back(&row, predicted.seconds);
      if (row.anchor == table.name + "/" + row.name) {
        cells[4] = "anchor";
      } else if (!row.anchor.empty()) {
        const double calibrated =
            Predict(row, models_, FactorOf(row.anchor)).seconds / *row.seconds - 1;
        cells[4] = Format("%+.1f", 100 * calibrated);
        for (TableErrors* each : errors) each->calibrated.Add(calibrated);
      }
    }
    if (row.bytes) {
      const double error = predicted.bytes / *row.bytes - 1;
      cells[5] = Format("%.2f", predicted.bytes / kGibibyte);
      cells[6] = Format("%.2f", *row.bytes / kGibibyte);
      cells[7] = Format("%+.1f", 100 * error);
      for (TableErrors* each : errors) each->memory.Add(error);
    }
    if (row.assumed) cells[8] = "inputs assumed";
    return cells;
  }

  double FactorOf(const std::string& anchor) {
    const auto known = factors_.find(anchor);
    if (known != factors_.end()) return known->second;
    for (const MeasuredTable& table : tables_) {
      for (const MeasuredRow& row : table.rows) {
        if (table.name + "/" + row.name == anchor) {
          return factors_[anchor] = Calibrate(row, models_);
        }
      }
    }
    throw Error("no row \"" + anchor + "\" to calibrate by");
  }

  const std::vector<MeasuredTable>& tables_;
  const std::string models_;
  std::map<std::string, double> factors_;
  /// Rows of the table so far, and their predicted seconds.
  std::vector<std::pair<const MeasuredRow*, double>> steps_;
};

}  // namespace

void RunMeasured(const BenchOptions& options, std::string_view /*suite*/) {
  const std::string path = options.costs.empty() ? "tools/bench/measured" : options.costs.front();
  const std::string folder = path.ends_with(".json") ? path.substr(0, path.rfind('/')) : path;
  Measurement(ReadMeasuredTables(path), folder + "/models").Run(options);
}

}  // namespace contraflow
