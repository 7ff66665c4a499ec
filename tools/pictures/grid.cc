#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "tools/cli/terminal.h"
#include "tools/pictures/picture.h"
#include "tools/report/text.h"

// Every row is laid out on one long canvas of columns and then cut into bands. Box edges are
// rounded to columns independently, so errors never add up, and boxes that start together stand
// together.

namespace contraflow {

namespace {

/// How much of a label a box of the text grid shows: the most that has room.
enum class LabelDetail { kLayer, kMicrobatch, kName };

/// Colours of the 256-colour palette: {side 0, side 1}.
struct Ink {
  int side[2];
};

Ink InkOf(Op op) {
  const Op kind = KindOf(op);
  if (kind == Op::F || kind == Op::ATTN_F) return {{221, 215}};  // yellow, orange
  if (kind == Op::BW) return {{114, 71}};                        // greens
  if (kind == Op::B || kind == Op::ATTN_B) return {{117, 74}};   // light blues
  if (kind == Op::W || kind == Op::ATTN_W) return {{146, 103}};  // greys towards violet
  if (kind == Op::DISPATCH_F) return {{180, 173}};               // browns
  if (kind == Op::COMBINE_B) return {{116, 73}};                 // blue greens
  if (IsRecompute(kind)) return {{218, 172}};                    // ochres
  return {{250, 250}};
}

std::string Lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string_view Letters(Op op) {
  if (op == Op::REDUCE) return "R";
  if (op == Op::STEP) return "S";
  if (op == Op::OFFLOAD) return "O";
  if (op == Op::RELOAD) return "L";
  if (op == Op::R) return "RF";  // a forward; R alone is REDUCE
  const std::string_view component = ShortName(op);
  return component.empty() ? Name(op) : component;
}

bool HasComponents(const Picture& picture) {
  return !picture.rows.empty() && !picture.rows[0].lane.empty();
}

/// Look of boxes of a kind, eight columns wide.
std::string SampleOf(Op kind) {
  std::string text = std::string(Letters(kind)) + "3";
  if (kind == Op::FB) text = "F3&BW1";
  if (!ShortName(kind).empty()) text = ShortNames(kind);
  text.resize(8, ' ');
  return "  " + text;
}

/// An index into the 256-colour palette.
int ColorOf(const Part& part) { return InkOf(part.op).side[part.side % 2]; }

/// Switches the terminal to black on this colour, or with -1 back to its default.
std::string SwitchColor(int color) {
  if (color < 0) return "\x1b[0m";
  return "\x1b[38;5;16;48;5;" + std::to_string(color) + "m";
}

std::string Swatch(Op kind) {
  const bool component = !ShortName(kind).empty();
  const Part first = {kind == Op::FB ? Op::F : kind, 0, 0, 0};
  std::string text = "  " + SwitchColor(ColorOf(first)) + "▏";
  text += component ? SampleOf(kind).substr(2, 1) + " " + SampleOf(kind).substr(5, 1) + " " : "3 ";
  if (kind == Op::FB) text += SwitchColor(ColorOf({Op::BW, 0, 0, 0})) + "&1 ";
  return text + SwitchColor(-1) + (kind == Op::FB ? "  " : component ? "   " : "     ");
}

/// "F12", of odd sides "f12"; of a component "AF12.0" (micro-batch and layer), "AF12" or "AF".
/// REDUCE and STEP show their stage. In colour, which tells what kind of work it is, "12", or
/// "A12.0" and so on.
std::string LabelOf(const Part& part, LabelDetail detail, bool color) {
  const bool component = !ShortName(part.op).empty();
  const std::string id = std::to_string(part.microbatch >= 0 ? part.microbatch : part.stage);
  std::string text(Letters(part.op));
  if (color) text = component ? text.substr(0, 1) : "";
  if (part.side % 2 != 0 && !color) text = Lower(text);
  if (component && detail == LabelDetail::kName) return text;
  text += id;
  if (component && detail == LabelDetail::kLayer) text += "." + std::to_string(part.layer);
  return text;
}

/// One letter, for boxes too narrow for a label: F B W, X of a full backward, & of a pair.
char SymbolOf(const Box& box) {
  if (box.parts.size() > 1) return '&';
  const Op op = box.parts[0].op;
  if (op == Op::BW) return 'X';
  if (op == Op::R) return box.parts[0].side % 2 == 0 ? 'A' : 'a';  // again
  const char letter = ShortName(op).empty() ? Letters(op)[0] : ShortName(op)[1];
  return box.parts[0].side % 2 == 0
             ? letter
             : static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
}

/// Ends the box of an instruction that a finding is about.
constexpr char kWrong = '!';

/// Returns the legend of labels and colours.
std::string GridLegend(const Picture& picture, bool color) {
  std::string out;
  const bool components = HasComponents(picture);
  for (const Op kind : KindsIn(picture)) {
    out += (color ? Swatch(kind) + (ShortName(kind).empty() ? std::string(Name(kind)) + " " : "")
                  : SampleOf(kind)) +
           std::string(Explain(kind)) + "\n";
  }
  if (!color) out += "  .       idle\n";
  const bool wrong = std::ranges::any_of(picture.rows, [](const Picture::Row& row) {
    return std::ranges::any_of(row.boxes, &Box::wrong);
  });
  if (wrong) out += std::string("  ") + kWrong + "       a finding is about it\n";
  if (!picture.sides.empty()) {
    const std::string sample = components ? "  af3 ab3 " : "  f3 bw3  ";
    out += (color ? "  the darker colours: " : sample) + picture.sides + "\n";
  }
  if (components) {
    const std::string name = color ? "A3.1" : "AF3.1";
    out += name +
           " is ATTN_F of micro-batch 3 in layer 1 of its stage. Narrow boxes drop\n"
           "the layer, then the micro-batch" +
           (color ? ".\n" : "; the narrowest show only F, B or W.\n");
  } else {
    out += "Numbers are micro-batches; ";
  }
  return out + (components ? "Times" : "times") + " are in " +
         (picture.unit == Unit::kUnit ? "the unit of the costs"
                                      : std::string(Name(FittingUnit(picture.to, picture.unit)))) +
         ".\n";
}

/// More bands than this and the picture gives up its numbers to become shorter.
constexpr int kMaxBands = 8;

/// Up to this many bands boxes are drawn a little wider than they must be.
constexpr int kFewBands = 4;

constexpr int kIdle = -1;

/// Most detailed first.
constexpr LabelDetail kDetails[] = {LabelDetail::kLayer, LabelDetail::kMicrobatch,
                                    LabelDetail::kName};

/// One column of one row: its character and its colour.
struct Column {
  std::string glyph = ".";
  int color = kIdle;
};

class GridDrawing {
 public:
  GridDrawing(const Picture& picture, const GridStyle& style)
      : picture_(picture), style_(style), shown_(FittingUnit(picture.to, picture.unit)) {
    int number = 0, lane = 0;
    for (const Picture::Row& row : picture.rows) {
      number = std::max(number, TextWidth(std::to_string(row.rank)));
      lane = std::max(lane, static_cast<int>(row.lane.size()));
    }
    // "rank ", the number and the lane, each with a space after it.
    number_ = number;
    prefix_ = 6 + number + (lane > 0 ? lane + 1 : 0);
    room_ = std::max(1, style.width - prefix_);
    ChooseScale();
  }

  std::string Draw() const {
    std::string out =
        Wrapped(picture_.title + "\n" + picture_.figures + "\ncosts: " + picture_.costs + "\n",
                style_.width);
    // Row by row into all bands, so that no more than one row is laid out at a time.
    std::vector<std::string> bands;
    const std::vector<Column> ruler = Ruler();
    for (int from = 0; from < columns_; from += band_) {
      bands.push_back(Line(std::string(static_cast<size_t>(prefix_), ' '), ruler, from));
    }
    for (const Picture::Row& row : picture_.rows) {
      const std::string head = Head(row);
      const std::vector<Column> line = LayOut(row);
      for (size_t b = 0; b < bands.size(); ++b) {
        bands[b] += Line(head, line, static_cast<int>(b) * band_);
      }
    }
    for (const std::string& band : bands) out += "\n" + band;
    return out + "\n" + Wrapped(GridLegend(picture_, style_.color) + Stops(), style_.width);
  }

 private:
  /// Places where ranks of a plan that is not sound go no further, and the fault.
  std::string Stops() const {
    std::string out = picture_.stops.empty() ? "" : "\n";
    for (const StoppedRank& stop : picture_.stops) {
      out += "rank " + std::to_string(stop.rank) + " goes no further than " + stop.text;
      if (!stop.lacks.empty()) {
        out += ", which waits for " + stop.lacks + ", and the rank lacks that";
      } else if (stop.on_rank >= 0) {
        out += ", where it waits for rank " + std::to_string(stop.on_rank) +
               (stop.in_cycle ? ": part of a cycle" : "");
      }
      out += "\n";
    }
    if (!picture_.findings.empty()) out += "\n";
    for (const std::string& finding : picture_.findings) out += finding + "\n";
    return out;
  }

  /// Text before a row; the second lane of a rank does not repeat its number.
  std::string Head(const Picture::Row& row) const {
    std::string number = std::to_string(row.rank);
    number.insert(0, static_cast<size_t>(number_) - number.size(), ' ');
    std::string head = "rank " + number + " ";
    if (row.lane == "all-to-all") head.assign(head.size(), ' ');
    head += row.lane;
    head.resize(static_cast<size_t>(prefix_), ' ');
    return head;
  }

  Time Length() const { return picture_.to - picture_.from; }

  /// Column where a time after the beginning of the picture stands.
  int At(Time after) const {
    return static_cast<int>(std::llround(static_cast<double>(after) * scale_));
  }
  int From(const Box& box) const { return At(std::max(box.start, picture_.from) - picture_.from); }
  int To(const Box& box) const { return At(std::min(box.end, picture_.to) - picture_.from); }

  int LabelWidth(const Box& box, LabelDetail detail) const {
    // In colour each part has one column for its left edge.
    int width = box.parts.size() > 1 && !style_.color ? 1 : 0;
    for (const Part& part : box.parts) {
      width += (style_.color ? 1 : 0) + TextWidth(LabelOf(part, detail, style_.color));
    }
    return width;
  }

  /// The most detailed label that fits, or nothing.
  std::optional<LabelDetail> Fitting(const Box& box, int room) const {
    for (const LabelDetail detail : kDetails) {
      if (LabelWidth(box, detail) <= room) return detail;
    }
    return {};
  }

  /// Smallest scale at which every box has room for its label and `spare` columns.
  double ScaleFor(LabelDetail detail, int spare) const {
    double scale = 0;
    for (const Picture::Row& row : picture_.rows) {
      for (const Box& box : row.boxes) {
        if (box.parts[0].microbatch < 0) continue;  // A short STEP must not blow up the picture.
        const int width = LabelWidth(box, detail) + spare;
        scale = std::max(scale, width / static_cast<double>(box.end - box.start));
      }
    }
    return scale;
  }

  /// Scale of as much detail as a few bands take. Letters that touch are hard to read; a free
  /// column is worth a few bands, too. `bands`: how many there are at a column a tick.
  double LabelScale(double bands) const {
    double scale = 0;
    for (const LabelDetail detail : kDetails) {
      for (const int spare : {style_.color ? 0 : 1, 0}) {
        scale = ScaleFor(detail, spare);
        if (scale * bands <= kFewBands) return scale;
      }
    }
    return scale;
  }

  void ChooseScale() {
    if (Length() == 0) return;
    const double bands = static_cast<double>(Length()) / room_;  // a column a tick
    scale_ = LabelScale(bands);
    scale_ = std::min(scale_, kMaxBands / bands);
    if (scale_ == 0) scale_ = 1 / bands;  // The plan has only REDUCE and STEP.
    columns_ = std::max(1, At(Length()));
    // Marks no closer than their text is wide.
    const std::string last = FormatTime(picture_.to, shown_);
    step_ = RulerStep(static_cast<Time>(std::ceil((TextWidth(last) + 2) / scale_)));
    // Bands of about one length, which break at marks where those are close enough together.
    const double mark = static_cast<double>(step_) * scale_;
    const int count = (columns_ + room_ - 1) / room_;
    const int marks = static_cast<int>(std::ceil(columns_ / (count * mark)));
    const int most = static_cast<int>(room_ / mark);
    band_ = most >= 4 ? At(step_ * std::min(marks, most)) : room_;
    if (columns_ <= room_) band_ = columns_;
  }

  std::vector<Column> Ruler() const {
    std::vector<Column> line(static_cast<size_t>(columns_), Column{" ", kIdle});
    for (Time time = 0; time <= Length(); time += step_) {
      const std::string text = FormatTime(picture_.from + time, shown_);
      for (size_t i = 0; i < text.size(); ++i) {
        const size_t at = static_cast<size_t>(At(time)) + i;
        // A number that would be cut by the end of its band is left out.
        if (static_cast<int>(at) / band_ != At(time) / band_ || at >= line.size()) break;
        line[at].glyph = text[i];
      }
      if (step_ == 0) break;
    }
    return line;
  }

  std::vector<Column> LayOut(const Picture::Row& row) const {
    std::vector<Column> line(static_cast<size_t>(columns_),
                             Column{style_.color ? " " : ".", kIdle});
    for (const Box& box : row.boxes) {
      const int from = From(box), to = std::min(To(box), columns_);
      if (from >= to) continue;
      if (style_.color) {
        PaintColor(box, from, to, &line);
      } else {
        PaintPlain(box, from, to, &line);
      }
    }
    return line;
  }

  void PaintPlain(const Box& box, int from, int to, std::vector<Column>* line) const {
    std::string label(1, SymbolOf(box));
    if (const auto detail = Fitting(box, to - from)) {
      label = LabelOf(box.parts[0], *detail, false);
      if (box.parts.size() > 1) label += "&" + LabelOf(box.parts[1], *detail, false);
    }
    label.resize(static_cast<size_t>(to - from), ' ');
    if (box.wrong) label.back() = kWrong;
    for (int at = from; at < to; ++at) {
      (*line)[static_cast<size_t>(at)].glyph = label[static_cast<size_t>(at - from)];
    }
  }

  void PaintColor(const Box& box, int from, int to, std::vector<Column>* line) const {
    const std::optional<LabelDetail> detail = Fitting(box, to - from);
    const int parts = static_cast<int>(box.parts.size());
    for (int p = 0; p < parts; ++p) {
      const Part& part = box.parts[static_cast<size_t>(p)];
      const int begin = from + (to - from) * p / parts;
      const int end = from + (to - from) * (p + 1) / parts;
      // The left edge of a box; inside a pair the sign that joins the two halves.
      std::vector<std::string> glyphs = {to - from == 1 ? " " : p == 0 ? "▏" : "&"};
      if (detail) {
        for (const char c : LabelOf(part, *detail, true)) glyphs.emplace_back(1, c);
      }
      glyphs.resize(static_cast<size_t>(std::max(end - begin, 0)), " ");
      for (int at = begin; at < end; ++at) {
        (*line)[static_cast<size_t>(at)] = {glyphs[static_cast<size_t>(at - begin)], ColorOf(part)};
      }
      if (box.wrong) (*line)[static_cast<size_t>(to - 1)].glyph = kWrong;
    }
  }

  /// The band that begins at column `from`.
  std::string Line(const std::string& prefix, const std::vector<Column>& line, int from) const {
    const int to = std::min(from + band_, columns_);
    std::string out = prefix;
    int color = kIdle;
    for (int at = from; at < to; ++at) {
      const Column& column = line[static_cast<size_t>(at)];
      if (column.color != color) out += SwitchColor(column.color);
      color = column.color;
      out += column.glyph;
    }
    if (color != kIdle) out += SwitchColor(kIdle);
    out.erase(out.find_last_not_of(' ') + 1);
    return out + "\n";
  }

  const Picture& picture_;
  const GridStyle style_;
  const Unit shown_;  // of the ruler
  int number_ = 0;    // columns of the longest rank number
  int prefix_ = 0;    // columns before the picture
  int room_ = 1;      // columns for the picture on a line
  double scale_ = 0;  // columns a tick
  int columns_ = 0;   // of the whole picture
  int band_ = 1;      // columns of a band
  Time step_ = 1;     // between two marks of the ruler
};

}  // namespace

std::string DrawGrid(const Picture& picture, const GridStyle& style) {
  return GridDrawing(picture, style).Draw();
}

}  // namespace contraflow
