#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <numeric>
#include <utility>

#include "tools/bench/bench.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

constexpr int kNameWidth = 34;

std::string Cell(double figure, int decimals) {
  if (std::isnan(figure)) return "-";
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, figure);
  return text;
}

int WidthOf(const BenchColumn& column) {
  return std::max(9, static_cast<int>(column.name.size())) + 2;
}

}  // namespace

BenchTable::BenchTable(std::vector<BenchColumn> columns, bool each)
    : columns_(std::move(columns)), each_(each) {
  if (!each_) return;
  std::printf("%-*s", kNameWidth, "");
  for (const BenchColumn& column : columns_) {
    std::printf("%*s", WidthOf(column), column.name.c_str());
  }
  std::printf("\n");
}

void BenchTable::Add(const std::vector<std::string>& classes, const std::string& name,
                     const std::vector<double>& figures, const std::string& note) {
  for (const std::string& key : classes) classes_[key].push_back(figures);
  if (!each_) return;
  std::printf("%-*s", kNameWidth, name.c_str());
  for (size_t i = 0; i < figures.size(); ++i) {
    std::printf("%*s", WidthOf(columns_[i]), Cell(figures[i], columns_[i].decimals).c_str());
  }
  std::printf("%s%s\n", note.empty() ? "" : "  ", note.c_str());
  std::fflush(stdout);
}

void BenchTable::PrintClasses() const {
  using Shows = BenchColumn::Shows;
  Table table;
  table.columns = {"class", ">rows"};
  for (const BenchColumn& column : columns_) {
    table.columns.push_back(">" + column.name);
    if (column.shows == Shows::kMeanAndMost) table.columns.emplace_back(">most");
    if (column.shows == Shows::kMeanAndLeast) table.columns.emplace_back(">least");
  }
  for (const auto& [name, rows] : classes_) {
    std::vector<std::string>& cells = table.rows.emplace_back();
    cells = {name, std::to_string(rows.size())};
    for (size_t i = 0; i < columns_.size(); ++i) {
      const auto& [_, decimals, shows] = columns_[i];
      std::vector<double> figures;
      for (const std::vector<double>& row : rows) {
        if (!std::isnan(row[i])) figures.push_back(row[i]);
      }
      const double sum = std::accumulate(figures.begin(), figures.end(), 0.0);
      const bool none = figures.empty();
      const double mean = none ? kNoFigure : sum / static_cast<double>(figures.size());
      cells.push_back(Cell(shows == Shows::kSum ? sum : mean, decimals));
      if (shows == Shows::kMeanAndMost) {
        cells.push_back(Cell(none ? kNoFigure : std::ranges::max(figures), decimals));
      } else if (shows == Shows::kMeanAndLeast) {
        cells.push_back(Cell(none ? kNoFigure : std::ranges::min(figures), decimals));
      }
    }
  }
  std::fputs(FormatTable(table, std::nullopt).c_str(), stdout);
}

double CpuMilliseconds() { return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

double Percent(Time value, Time of) {
  return 100 * static_cast<double>(value - of) / static_cast<double>(of);
}

double Exponent(const std::vector<std::pair<double, double>>& points) {
  double sx = 0, sy = 0, sxx = 0, sxy = 0;
  const auto n = static_cast<double>(points.size());
  for (const auto& [x, y] : points) {
    const double u = std::log(x), v = std::log(y);
    sx += u;
    sy += v;
    sxx += u * u;
    sxy += u * v;
  }
  return (n * sxy - sx * sy) / (n * sxx - sx * sx);
}

SearchOptions BenchOptions::search(double seconds) const {
  SearchOptions search;
  search.budget = static_cast<int64_t>(budget.value_or(seconds) * 1e9);
  search.seed = static_cast<uint64_t>(seed.value_or(0));
  return search;
}

}  // namespace contraflow
