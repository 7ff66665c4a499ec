// Second face of svg.h: the page around the drawing.

#include <algorithm>

#include "tools/contraflow/report_text.h"
#include "tools/contraflow/table.h"
#include "tools/pictures/svg.h"

namespace contraflow {
namespace {

constexpr std::string_view kHead =
    "<!DOCTYPE html>\n"
    "<html lang=\"en\">\n"
    "<head>\n"
    "<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
    "<style>\n"
    "  body { margin: 2.5rem auto; max-width: 76rem; padding: 0 1.5rem; color: #1f2430;\n"
    "         font: 15px/1.5 ui-sans-serif, system-ui, 'DejaVu Sans', sans-serif; }\n"
    "  h1 { font-size: 1.35rem; margin: 0 0 .2rem; }\n"
    "  p { margin: .2rem 0 1rem; color: #4b5262; }\n"
    "  .drawing { overflow-x: auto; border: 1px solid #e3e6ec; border-radius: 6px; }\n"
    "  .drawing svg { display: block; }\n"
    "  table { border-collapse: collapse; margin: 1.5rem 0; font-variant-numeric: tabular-nums; }\n"
    "  th, td { padding: .2rem .9rem; text-align: right; border-bottom: 1px solid #e3e6ec; }\n"
    "  th { color: #4b5262; font-weight: 600; }\n"
    "  pre { font: 13px/1.5 ui-monospace, 'DejaVu Sans Mono', monospace; color: #4b5262;\n"
    "        white-space: pre-wrap; }\n"
    "</style>\n";

std::string RankRows(const Report& report, bool bytes) {
  const auto time = [&](Time ticks) { return FormatTime(ticks, report.unit); };
  const auto cell = [](const std::string& text) { return "<td>" + text + "</td>"; };
  std::string out = "<tr><th>rank</th><th>busy</th><th>bubble</th>";
  if (report.components) out += "<th>all-to-all</th><th>exposed</th>";
  out += "<th>activations</th>";
  out += bytes ? "<th>bytes</th></tr>\n" : "</tr>\n";
  for (size_t r = 0; r < report.simulation.ranks.size(); ++r) {
    const RankFigures& rank = report.simulation.ranks[r];
    out += "<tr>" + cell(std::to_string(r)) + cell(time(rank.busy)) + cell(time(rank.bubble));
    if (report.components) out += cell(time(rank.all_to_all)) + cell(time(rank.exposed));
    out += cell(std::to_string(rank.peak_activations));
    out += (bytes ? cell(FormatCount(rank.peak_bytes)) : "") + "</tr>\n";
  }
  return out;
}

}  // namespace

std::string DrawHtml(const Picture& picture, const Plan& plan, const Report& report) {
  const std::string title = EscapeMarkup(picture.title);
  std::string out = std::string(kHead) + "<title>" + title + "</title>\n</head>\n<body>\n<h1>" +
                    title + "</h1>\n<p>" + EscapeMarkup(picture.figures) +
                    "<br>costs: " + EscapeMarkup(picture.costs) +
                    "</p>\n<div class=\"drawing\">\n" + DrawSvg(picture) + "</div>\n<pre>" +
                    EscapeMarkup(SummaryTable(plan, report));
  if (report.formula) out += "\n" + EscapeMarkup(std::string(kFormulaLegend));
  return out + "</pre>\n<table>\n" + RankRows(report, report.peak_bytes() > 0) +
         "</table>\n</body>\n</html>\n";
}

}  // namespace contraflow
