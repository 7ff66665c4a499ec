#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "tools/pictures/picture.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

// Lengths are whole hundredths of a pixel, so the same plan gives the same bytes everywhere.

namespace contraflow {

namespace {

using Hundredths = int64_t;

constexpr Hundredths kHeadRoom = 3200, kRowHeight = 2400, kRowGap = 400, kRight = 1600;
constexpr Hundredths kLegendLine = 2200, kTitleLine = 2800;
/// Left edge of the picture: after "rank 0", or "rank 0 all-to-all".
constexpr Hundredths kLeftOfRanks = 7000, kLeftOfLanes = 12000;
/// Gap between the two lanes of a rank.
constexpr Hundredths kLaneGap = 100;
constexpr Hundredths kNarrow = 400;
/// A drawing is at least this wide where time allows, and never much wider than the most.
constexpr double kLeastWidth = 900'00, kMostWidth = 4'000'00;
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
    "  .stop { stroke: #c62828; stroke-width: 3; } .wait { stroke: #c62828; fill: none; }\n"
    "  .wrong { stroke: #c62828; stroke-width: 2; fill: none; pointer-events: none; }\n"
    "  .s { fill: #c62828; }\n";

constexpr std::string_view kHeadingStyle =
    "  .h { font: 600 14px ui-sans-serif, system-ui, 'DejaVu Sans', sans-serif; fill: #1f2430; }\n";

/// "12.5" for 1250.
std::string Px(Hundredths value) {
  std::string text = std::to_string(value / 100);
  if (const Hundredths rest = value % 100; rest != 0) {
    text += rest < 10 ? ".0" + std::to_string(rest) : "." + std::to_string(rest);
    if (text.back() == '0') text.pop_back();
  }
  return text;
}

/// Text in a part's box: "12", of components "AF12" or, `brief`, "AF".
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

/// The beginning of an svg element that is so large, at `y` of another one if that is above 0.
std::string SvgTag(Hundredths width, Hundredths height, Hundredths y) {
  return "<svg xmlns=\"http://www.w3.org/2000/svg\"" + (y > 0 ? " y=\"" + Px(y) + "\"" : "") +
         " width=\"" + Px(width) + "\" height=\"" + Px(height) + "\" viewBox=\"0 0 " + Px(width) +
         " " + Px(height) + "\" role=\"img\">\n";
}

class Drawing {
 public:
  Drawing(const Picture& picture, std::optional<int> width)
      : picture_(picture),
        kinds_(KindsIn(picture)),
        lanes_(!picture.rows.empty() && !picture.rows[0].lane.empty()),
        left_(lanes_ ? kLeftOfLanes : kLeftOfRanks) {
    const auto length = static_cast<double>(Length());
    if (length == 0) return;
    if (width) {
      scale_ =
          std::max(1.0, static_cast<double>(Hundredths{*width} * 100 - left_ - Right())) / length;
      return;
    }
    scale_ = kLeastWidth / length;
    for (const Picture::Row& row : picture.rows) {
      for (const Box& box : row.boxes) {
        if (box.parts[0].microbatch < 0) continue;
        scale_ = std::max(scale_, LabelWidth(box, true) / static_cast<double>(box.end - box.start));
      }
    }
    scale_ = std::min(scale_, kMostWidth / length);
  }

  Time Length() const { return picture_.to - picture_.from; }
  double scale() const { return scale_; }
  void set_scale(double scale) { scale_ = scale; }

  Hundredths Width() const {
    return std::max<Hundredths>(At(picture_.to) + Right(), kMinSvgWidth * 100);
  }
  Hundredths Height() const {
    const auto legend_lines = static_cast<Hundredths>(kinds_.size() + picture_.findings.size()) +
                              1 + (picture_.sides.empty() ? 0 : 1);
    return Bottom() + (legend_lines + 1) * kLegendLine;
  }

  /// The element, with a place in another one if `y` is above 0.
  std::string Draw(Hundredths y) const {
    const Hundredths bottom = Bottom();
    std::string out = SvgTag(Width(), Height(), y) + "<title>" + EscapeMarkup(picture_.title) +
                      "</title>\n<style>\n" + std::string(kStyle) + Colors() + "</style>\n" +
                      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
    out += Ruler(bottom);
    Hundredths row_y = kHeadRoom;
    for (const Picture::Row& row : picture_.rows) {
      out += Row(row, row_y);
      row_y += kRowHeight + GapBelow(row);
    }
    return out + Stops() + Legend(bottom + kLegendLine) + "</svg>\n";
  }

 private:
  /// Bottom of the rows.
  Hundredths Bottom() const {
    Hundredths bottom = kHeadRoom;
    for (const Picture::Row& row : picture_.rows) bottom += kRowHeight + GapBelow(row);
    return bottom;
  }

  /// Room right of the picture, for the instruction of a rank that stands still.
  Hundredths Right() const {
    size_t longest = 0;
    for (const StoppedRank& stop : picture_.stops) longest = std::max(longest, stop.text.size());
    return kRight + (longest > 0 ? 6000 + 720 * static_cast<Hundredths>(longest) : 0);
  }

  /// Styles of the boxes that are drawn.
  std::string Colors() const {
    std::string out;
    const auto drawn = [&](Op kind) { return std::count(kinds_.begin(), kinds_.end(), kind) > 0; };
    for (const Op kind : AllKinds()) {
      // A pair is drawn as its two parts.
      const bool part = (kind == Op::F || kind == Op::BW) && drawn(Op::FB);
      if (kind == Op::FB || (!drawn(kind) && !part)) continue;
      out += " ";
      for (int side = 0; side < std::min(ColorCount(), picture_.side_count); ++side) {
        out += " ." + std::string(Name(kind)) + std::to_string(side) +
               " { fill: " + ColorText(ColorOf(kind, side, picture_.side_count)) + "; }";
      }
      out += "\n";
    }
    return out;
  }

  int ColorCount() const { return picture_.side_count > 2 ? kSideColors : 2; }

  std::string Class(const Part& part) const {
    return std::string(Name(KindOf(part.op))) + std::to_string(part.side % ColorCount());
  }

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
    Hundredths free = 0;  // after the last label
    const Time step = RulerStep(static_cast<Time>(std::ceil(60'00 / scale_)));
    for (Time time = picture_.from; time <= picture_.to; time += step) {
      const std::string label = FormatFigure(time, picture_.unit);
      // The last one stands before its mark where it would end after the drawing.
      const auto room = static_cast<Hundredths>(kDigit * static_cast<double>(label.size()));
      const bool before = At(time) + 300 + room > At(picture_.to) + Right();
      out += "<path class=\"mark\" d=\"M" + Px(At(time)) + " " + Px(kHeadRoom - 600) + "V" +
             Px(bottom) + "\"/>";
      const Hundredths begin = At(time) + (before ? -300 - room : 300);
      if (begin >= free) out += Text("t", begin, kHeadRoom - 900, label);
      out += "\n";
      free = begin + room;
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
    if (box.wrong) out += Rect("wrong", from, y, to - from, kRowHeight);
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
    return text + "&#10;" + FormatFigure(box.start, picture_.unit) + " to " +
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
    if (picture_.side_count == 2) {
      out += Text("l", left_, y, "darker: " + picture_.sides) + "\n";
      y += kLegendLine;
    } else if (picture_.side_count > 2) {
      out += SideColors(y) + "\n";
      y += kLegendLine;
    }
    out += Text("t", left_, y, picture_.figures) + "\n";
    for (const std::string& finding : picture_.findings) {
      y += kLegendLine;
      out += Text("s", left_, y, finding) + "\n";
    }
    return out;
  }

  /// Meaning of the colours of the stages of a rank, in one line.
  std::string SideColors(Hundredths y) const {
    std::string out;
    Hundredths x = left_;
    const Op kind = kinds_.empty() || kinds_[0] == Op::FB ? Op::F : kinds_[0];
    for (int side = 0; side < std::min(ColorCount(), picture_.side_count); ++side) {
      out += Rect("box " + Class({.op = kind, .side = side}), x, y - 1200, 2400, 1600) +
             Text("l", x + 2800, y, std::to_string(side + 1));
      x += 5200;
    }
    return out + Text("l", x, y, "which stage of its rank");
  }

  /// Places where ranks go no further, and which of them wait for each other.
  std::string Stops() const {
    std::string out;
    std::map<int, std::pair<Hundredths, Hundredths>> places;
    for (const StoppedRank& stop : picture_.stops) {
      Hundredths y = kHeadRoom;
      for (const Picture::Row& row : picture_.rows) {
        if (row.rank == stop.rank) break;
        y += kRowHeight + GapBelow(row);
      }
      const Hundredths x = At(stop.since);
      places[stop.rank] = {x, y + kRowHeight / 2};
      out += "<path class=\"" + std::string(stop.in_cycle ? "stop" : "mark") + "\" d=\"M" + Px(x) +
             " " + Px(y) + "V" + Px(y + kRowHeight) + "\"/>" +
             Text(stop.in_cycle ? "s" : "l", At(picture_.to) + 800, y + 1600, "at " + stop.text) +
             "\n";
    }
    for (const StoppedRank& stop : picture_.stops) {
      const auto on = places.find(stop.on_rank);
      if (!stop.in_cycle || on == places.end()) continue;
      const auto [x, y] = places[stop.rank];
      out += "<path class=\"wait\" d=\"M" + Px(x) + " " + Px(y) + "L" + Px(on->second.first) + " " +
             Px(on->second.second) + "\"/>\n";
    }
    return out;
  }

  const Picture& picture_;
  const std::vector<Op> kinds_;
  const bool lanes_;  // a rank has two rows
  const Hundredths left_;
  double scale_ = 0;  // hundredths of a pixel a tick
};

}  // namespace

std::string DrawSvg(const Picture& picture, std::optional<int> width) {
  return Drawing(picture, width).Draw(0);
}

std::string DrawSvg(std::span<const Picture> pictures, const std::string& title,
                    std::optional<int> width) {
  std::vector<Drawing> drawings;
  for (const Picture& picture : pictures) drawings.emplace_back(picture, width);
  // The longest decides where a width is given, the narrowest box elsewhere.
  const auto longest = std::ranges::max_element(drawings, {}, &Drawing::Length);
  double scale = longest->scale();
  for (const Drawing& drawing : drawings) {
    if (!width && drawing.Length() > 0) scale = std::max(scale, drawing.scale());
  }
  if (longest->Length() > 0) {
    scale = std::min(scale, kMostWidth / static_cast<double>(longest->Length()));
  }
  Hundredths right = 0, bottom = title.empty() ? 0 : kTitleLine;
  std::string inner = title.empty() ? "" : Text("h", 1000, 2000, title) + "\n";
  for (size_t k = 0; k < drawings.size(); ++k) {
    Drawing& drawing = drawings[k];
    drawing.set_scale(scale);
    if (!pictures[k].heading.empty()) {
      inner += Text("h", 1000, bottom + 2000, pictures[k].heading) + "\n";
      bottom += kTitleLine;
    }
    inner += drawing.Draw(bottom);
    bottom += drawing.Height();
    right = std::max(right, drawing.Width());
  }
  const std::string name = title.empty() ? pictures.front().heading : title;
  return SvgTag(right, bottom, 0) + "<title>" + EscapeMarkup(name) + "</title>\n<style>\n" +
         std::string(kHeadingStyle) +
         "</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n" + inner + "</svg>\n";
}

}  // namespace contraflow
