#include "tools/bench/figure.h"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "compiler/files/json.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

std::string Short(double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, value >= 100 ? "%.0f" : "%.3g", value);
  return buffer;
}

double RatioOf(const Figure& figure) {
  return figure.at_most ? figure.target / figure.value : figure.value / figure.target;
}

std::vector<std::string> CellsOf(const Figure& figure) {
  std::vector<std::string> cells = {figure.name, Short(figure.value), figure.unit};
  if (figure.target > 0) {
    char ratio[64];
    std::snprintf(ratio, sizeof ratio, "%.2f", RatioOf(figure));
    cells.push_back((figure.at_most ? "<= " : ">= ") + Short(figure.target));
    cells.push_back(ratio);
  }
  return cells;
}

/// Six digits, which is more than any clock gives; null where there is no such number.
Json Number(double value) {
  if (!std::isfinite(value)) return nullptr;
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.6g", value);
  return std::stod(buffer);
}

}  // namespace

std::string FormatFigures(const std::vector<Figure>& figures) {
  Table table;
  table.columns = {"", ">figure", "unit", ">target", ">ratio"};
  for (const Figure& figure : figures) table.rows.push_back(CellsOf(figure));
  return FormatTable(table);
}

std::string FormatFigure(const Figure& figure) {
  std::string line;
  for (const std::string& cell : CellsOf(figure)) line += (line.empty() ? "" : "  ") + cell;
  return line + "\n";
}

void AppendFigure(const std::string& path, const std::string& part, const Figure& figure) {
  Json json = Json::object();
  json["part"] = part;
  json["figure"] = figure.name;
  json["value"] = Number(figure.value);
  json["unit"] = figure.unit;
  json["target"] = figure.target > 0 ? Number(figure.target) : Json(nullptr);
  json["ratio"] = figure.target > 0 ? Number(RatioOf(figure)) : Json(nullptr);
  const std::string line = json.dump() + "\n";
  std::ofstream file(path, std::ios::app);
  file.write(line.data(), static_cast<std::streamsize>(line.size()));
  file.flush();
  if (!file) throw Error(path + ": the figures cannot be appended");
}

}  // namespace contraflow
