#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tools/pictures/picture.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

// Lengths are whole hundredths of a pixel, so the same plan gives the same bytes everywhere.
// Second face of svg.h: the page around the drawing.

namespace contraflow {

namespace {

/// Text for SVG and HTML: & < > and quotes as entities.
std::string EscapeMarkup(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

using Hundredths = int64_t;

constexpr Hundredths kTop = 3200, kRowHeight = 2400, kRowGap = 400, kRight = 1600;
constexpr Hundredths kLegendLine = 2200;
/// Where the picture begins: behind "rank 0", or "rank 0 all-to-all".
constexpr Hundredths kLeftOfRanks = 7000, kLeftOfLanes = 12000;
/// Between the two lanes of a rank.
constexpr Hundredths kLaneGap = 100;
constexpr Hundredths kNarrow = 400;
/// A drawing is at least this wide where time allows, and never much wider than the most.
constexpr double kLeastWidth = 900'00, kMostWidth = 24'000'00;
constexpr double kDigit = 640;   // width of a digit of the labels
constexpr double kLetter = 760;  // and of a capital letter
constexpr double kMargin = 600;  // left and right of a label together

constexpr std::string_view kStyle =
    "  text { font: 11px ui-sans-serif, system-ui, 'DejaVu Sans', sans-serif; fill: #1f2430; }\n"
    "  .n { text-anchor: middle; pointer-events: none; }\n"
    "  .r { text-anchor: end; }\n"
    "  .t { fill: #6b7280; }\n"
    "  .idle { fill: #f1f2f5; }\n"
    "  .mark { stroke: #d4d8e0; stroke-width: 1; }\n"
    "  .box { stroke: #ffffff; stroke-width: 1; }\n"
    "  .pair { fill: none; stroke: #1f2430; stroke-width: 1; pointer-events: none; }\n"
    "  .F0, .ATTN_F0 { fill: #ffd166; } .F1, .ATTN_F1 { fill: #f4a259; }\n"
    "  .BW0 { fill: #8fd694; } .BW1 { fill: #57b371; }\n"
    "  .B0, .ATTN_B0 { fill: #9ad1f5; } .B1, .ATTN_B1 { fill: #62a8dc; }\n"
    "  .W0, .ATTN_W0 { fill: #b9b4e0; } .W1, .ATTN_W1 { fill: #918ac9; }\n"
    "  .R0, .ATTN_R0 { fill: #e6c34a; } .R1, .ATTN_R1 { fill: #cc9a2e; }\n"
    "  .DISPATCH_R0 { fill: #d4bb7e; } .DISPATCH_R1 { fill: #bd9f57; }\n"
    "  .DISPATCH_F0 { fill: #e3c9a8; } .DISPATCH_F1 { fill: #cfa877; }\n"
    "  .COMBINE_B0 { fill: #a8dcd9; } .COMBINE_B1 { fill: #6fbcb8; }\n"
    "  .REDUCE0, .REDUCE1, .STEP0, .STEP1 { fill: #c9ccd3; }\n";

/// "12.5" for 1250.
std::string Px(Hundredths value) {
  std::string text = std::to_string(value / 100);
  if (const Hundredths rest = value % 100; rest != 0) {
    text += rest < 10 ? ".0" + std::to_string(rest) : "." + std::to_string(rest);
    if (text.back() == '0') text.pop_back();
  }
  return text;
}

std::string Class(const Part& part) {
  return std::string(Name(KindOf(part.op))) + std::to_string(part.side % 2);
}

/// What is written into a part's box: "12", of components "AF12" or, `brief`, "AF".
std::string Label(const Part& part, bool brief) {
  const std::string id = std::to_string(part.microbatch >= 0 ? part.microbatch : part.stage);
  const std::string name(ShortName(part.op));
  return !name.empty() && brief ? name : name + id;
}

double LabelWidth(const Box& box, bool brief) {
  double width = 0;
  for (const Part& part : box.parts) {
    const auto letters = static_cast<double>(ShortName(part.op).size());
    const auto digits = static_cast<double>(Label(part, brief).size()) - letters;
    width += kMargin + kDigit * digits + kLetter * letters;
  }
  return width;
}

std::string Rect(const std::string& classes, Hundredths x, Hundredths y, Hundredths width,
                 Hundredths height) {
  return "<rect class=\"" + classes + "\" x=\"" + Px(x) + "\" y=\"" + Px(y) + "\" width=\"" +
         Px(width) + "\" height=\"" + Px(height) + "\"/>";
}

std::string Text(const std::string& classes, Hundredths x, Hundredths y, std::string_view text) {
  return "<text class=\"" + classes + "\" x=\"" + Px(x) + "\" y=\"" + Px(y) + "\">" +
         EscapeMarkup(text) + "</text>";
}

class Drawing {
 public:
  explicit Drawing(const Picture& picture)
      : picture_(picture),
        kinds_(KindsIn(picture)),
        lanes_(!picture.rows.empty() && !picture.rows[0].lane.empty()),
        left_(lanes_ ? kLeftOfLanes : kLeftOfRanks) {
    const auto length = static_cast<double>(picture.to - picture.from);
    if (length == 0) return;
    scale_ = kLeastWidth / length;
    for (const Picture::Row& row : picture.rows) {
      for (const Box& box : row.boxes) {
        if (box.parts[0].microbatch < 0) continue;
        scale_ = std::max(scale_, LabelWidth(box, true) / static_cast<double>(box.end - box.start));
      }
    }
    scale_ = std::min(scale_, kMostWidth / length);
  }

  std::string Draw() const {
    Hundredths bottom = kTop;
    for (const Picture::Row& row : picture_.rows) bottom += kRowHeight + GapBelow(row);
    const Hundredths legend_lines =
        static_cast<Hundredths>(kinds_.size()) + 1 + (picture_.sides.empty() ? 0 : 1);
    const Hundredths width = std::max<Hundredths>(At(picture_.to) + kRight, 560'00);
    const Hundredths height = bottom + (legend_lines + 1) * kLegendLine;
    std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + Px(width) +
                      "\" height=\"" + Px(height) + "\" viewBox=\"0 0 " + Px(width) + " " +
                      Px(height) + "\" role=\"img\">\n<title>" + EscapeMarkup(picture_.title) +
                      "</title>\n<style>\n" + std::string(kStyle) + "</style>\n" +
                      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
    out += Ruler(bottom);
    Hundredths y = kTop;
    for (const Picture::Row& row : picture_.rows) {
      out += Row(row, y);
      y += kRowHeight + GapBelow(row);
    }
    return out + Legend(bottom + kLegendLine) + "</svg>\n";
  }

 private:
  /// The first lane of a rank stands close above its second.
  Hundredths GapBelow(const Picture::Row& row) const {
    return lanes_ && row.lane == "compute" ? kLaneGap : kRowGap;
  }

  /// Inside the picture also where a box reaches out of it.
  Hundredths At(Time time) const {
    const Time inside = std::clamp(time, picture_.from, picture_.to) - picture_.from;
    return left_ + std::llround(static_cast<double>(inside) * scale_);
  }

  std::string Ruler(Hundredths bottom) const {
    if (picture_.to == picture_.from) return "";
    std::string out;
    const Time step = RulerStep(static_cast<Time>(std::ceil(60'00 / scale_)));
    for (Time time = picture_.from; time <= picture_.to; time += step) {
      out += "<path class=\"mark\" d=\"M" + Px(At(time)) + " " + Px(kTop - 600) + "V" + Px(bottom) +
             "\"/>" + Text("t", At(time) + 300, kTop - 900, FormatTime(time, picture_.unit)) + "\n";
    }
    return out;
  }

  std::string Row(const Picture::Row& row, Hundredths y) const {
    std::string head = "rank " + std::to_string(row.rank);
    if (lanes_) head = row.lane == "compute" ? head + " compute" : std::string(row.lane);
    std::string out = "<g>" + Text("r", left_ - 1000, y + 1600, head) +
                      Rect("idle", left_, y, At(picture_.to) - left_, kRowHeight) + "\n";
    for (const Box& box : row.boxes) out += BoxText(box, y);
    return out + "</g>\n";
  }

  std::string BoxText(const Box& box, Hundredths y) const {
    const Hundredths from = At(box.start), to = At(box.end);
    const auto fits = [&](bool brief) {
      return LabelWidth(box, brief) <= static_cast<double>(to - from) + 1;
    };
    const bool brief = !fits(false);
    const auto parts = static_cast<Hundredths>(box.parts.size());
    std::string out = "<g><title>" + Hover(box) + "</title>";
    for (Hundredths p = 0; p < parts; ++p) {
      const Part& part = box.parts[static_cast<size_t>(p)];
      const Hundredths begin = from + (to - from) * p / parts;
      const Hundredths end = from + (to - from) * (p + 1) / parts;
      // An edge would hide a box that is hardly wider than it.
      out += Rect((end - begin > kNarrow ? "box " : "") + Class(part), begin, y, end - begin,
                  kRowHeight);
      if (fits(brief)) out += Text("n", (begin + end) / 2, y + 1600, Label(part, brief));
    }
    if (parts > 1 && to - from > kNarrow)
      out += Rect("pair", from + 50, y + 50, to - from - 100, kRowHeight - 100);
    return out + "</g>\n";
  }

  std::string Hover(const Box& box) const {
    std::string text;
    for (const Part& part : box.parts) {
      text += (text.empty() ? "" : " + ") + std::string(Name(part.op)) + " s" +
              std::to_string(part.stage);
      if (part.layer >= 0) text += " l" + std::to_string(part.layer);
      if (part.microbatch >= 0) text += " m" + std::to_string(part.microbatch);
    }
    return text + "&#10;" + FormatTime(box.start, picture_.unit) + " to " +
           FormatWithUnit(box.end, picture_.unit) + ", instruction " + std::to_string(box.index);
  }

  std::string Legend(Hundredths y) const {
    std::string out;
    const Hundredths text_x = left_ + 7000;
    for (const Op op : kinds_) {
      const Op first = op == Op::FB ? Op::F : op;
      const Hundredths half = op == Op::FB ? 2400 : 4800;
      out += Rect("box " + std::string(Name(first)) + "0", left_, y - 1200, half, 1600);
      if (op == Op::FB) {
        out += Rect("box BW0", left_ + half, y - 1200, half, 1600) +
               Rect("pair", left_ + 50, y - 1150, 2 * half - 100, 1500);
      }
      out += Text("l", text_x, y, std::string(ShortNames(op)) + ": " + std::string(Explain(op))) +
             "\n";
      y += kLegendLine;
    }
    if (!picture_.sides.empty()) {
      out += Text("l", left_, y, "darker: " + picture_.sides) + "\n";
      y += kLegendLine;
    }
    return out + Text("t", left_, y, picture_.figures) + "\n";
  }

  const Picture& picture_;
  const std::vector<Op> kinds_;
  const bool lanes_;  // a rank has two rows
  const Hundredths left_;
  double scale_ = 0;  // hundredths of a pixel a tick
};

}  // namespace

std::string DrawSvg(const Picture& picture) { return Drawing(picture).Draw(); }

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
