// Every row is laid out on one long canvas of columns and then cut into bands. Box edges are
// rounded to columns independently, so errors never add up and what starts together stands
// together.

#include "tools/grid.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>

#include "tools/table.h"

namespace contraflow {
namespace {

/// More bands than this and the picture gives up its numbers to become shorter.
constexpr int kMaxBands = 8;

/// Up to this many bands boxes are drawn a little wider than they must be.
constexpr int kFewBands = 4;

/// Colours of the 256-colour palette: {side 0, side 1}.
struct Ink {
  int side[2];
};

constexpr int kIdle = -1;

Ink InkOf(Op op) {
  if (op == Op::F) return {{221, 215}};  // yellow, orange
  if (op == Op::BW) return {{114, 71}};  // greens
  if (op == Op::B) return {{117, 74}};   // light blues
  if (op == Op::W) return {{146, 103}};  // greys towards violet
  return {{250, 250}};
}

int ColorOf(const Part& part) { return InkOf(part.op).side[part.side % 2]; }

std::string_view Letters(Op op) {
  if (op == Op::REDUCE) return "R";
  if (op == Op::STEP) return "S";
  return Name(op);
}

/// "F12", of odd sides "f12"; REDUCE and STEP show their stage.
std::string PlainLabel(const Part& part) {
  std::string text(Letters(part.op));
  if (part.side % 2 != 0) {
    for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text + std::to_string(part.microbatch >= 0 ? part.microbatch : part.stage);
}

/// For boxes too narrow for a label.
char Symbol(const Box& box) {
  if (box.parts.size() > 1) return '&';
  if (box.parts[0].op == Op::BW) return 'X';
  const char letter = Letters(box.parts[0].op)[0];
  return box.parts[0].side % 2 == 0
             ? letter
             : static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
}

/// One column of one row: what stands there, on which colour.
struct Column {
  std::string glyph = ".";
  int color = kIdle;
};

class Grid {
 public:
  Grid(const Picture& picture, const GridStyle& style) : picture_(picture), style_(style) {
    for (const Picture::Row& row : picture.rows) {
      prefix_ = std::max(prefix_, TextWidth(std::to_string(row.rank)));
    }
    prefix_ += 6;  // "rank " and the space behind the number
    room_ = std::max(1, style.width - prefix_);
    ChooseScale();
  }

  std::string Draw() const {
    std::string out =
        picture_.title + "\n" + picture_.figures + "\ncosts: " + picture_.costs + "\n";
    // Row by row into all bands, so that no more than one row is laid out at a time.
    std::vector<std::string> bands;
    const std::vector<Column> ruler = Ruler();
    for (int from = 0; from < columns_; from += band_) {
      bands.push_back(Line(std::string(static_cast<size_t>(prefix_), ' '), ruler, from));
    }
    for (const Picture::Row& row : picture_.rows) {
      std::string number = std::to_string(row.rank);
      number.insert(0, static_cast<size_t>(prefix_ - 6) - number.size(), ' ');
      const std::vector<Column> line = LayOut(row);
      for (size_t b = 0; b < bands.size(); ++b) {
        bands[b] += Line("rank " + number + " ", line, static_cast<int>(b) * band_);
      }
    }
    for (const std::string& band : bands) out += "\n" + band;
    return out + "\n" + Legend();
  }

 private:
  int At(Time time) const {
    return static_cast<int>(std::llround(static_cast<double>(time) * scale_));
  }

  int LabelWidth(const Box& box) const {
    // In colour each part has one column for its left edge.
    int width = box.parts.size() > 1 && !style_.color ? 1 : 0;
    for (const Part& part : box.parts) {
      const int id = part.microbatch >= 0 ? part.microbatch : part.stage;
      width += style_.color ? 1 + TextWidth(std::to_string(id)) : TextWidth(PlainLabel(part));
    }
    return width;
  }

  /// Smallest scale at which every box has room for its label and `spare` columns.
  double ScaleFor(int spare) const {
    double scale = 0;
    for (const Picture::Row& row : picture_.rows) {
      for (const Box& box : row.boxes) {
        if (box.parts[0].microbatch < 0) continue;  // A short STEP must not blow up the picture.
        const int width = LabelWidth(box) + spare;
        scale = std::max(scale, width / static_cast<double>(box.end - box.start));
      }
    }
    return scale;
  }

  void ChooseScale() {
    if (picture_.makespan == 0) return;
    const double bands = static_cast<double>(picture_.makespan) / room_;  // a column a tick
    // Letters that touch are hard to read; a free column is worth a few bands.
    scale_ = ScaleFor(style_.color ? 0 : 1);
    if (scale_ * bands > kFewBands) scale_ = ScaleFor(0);
    scale_ = std::min(scale_, kMaxBands / bands);
    if (scale_ == 0) scale_ = 1 / bands;  // Nothing but REDUCE and STEP.
    columns_ = std::max(1, At(picture_.makespan));
    // Marks no closer than their text is wide.
    const std::string last = FormatTime(picture_.makespan, picture_.unit);
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
    for (Time time = 0; time <= picture_.makespan; time += step_) {
      const std::string text = FormatTime(time, picture_.unit);
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
    std::vector<Column> line(static_cast<size_t>(columns_));
    for (const Box& box : row.boxes) {
      const int from = At(box.start), to = std::min(At(box.end), columns_);
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
    std::string label = PlainLabel(box.parts[0]);
    if (box.parts.size() > 1) label += "&" + PlainLabel(box.parts[1]);
    if (static_cast<int>(label.size()) > to - from) label = Symbol(box);
    label.resize(static_cast<size_t>(to - from), ' ');
    for (int at = from; at < to; ++at) {
      (*line)[static_cast<size_t>(at)].glyph = label[static_cast<size_t>(at - from)];
    }
  }

  void PaintColor(const Box& box, int from, int to, std::vector<Column>* line) const {
    const bool fits = LabelWidth(box) <= to - from;
    const int parts = static_cast<int>(box.parts.size());
    for (int p = 0; p < parts; ++p) {
      const Part& part = box.parts[static_cast<size_t>(p)];
      const int begin = from + (to - from) * p / parts;
      const int end = from + (to - from) * (p + 1) / parts;
      // The left edge of a box; inside a pair the sign that joins the two halves.
      std::vector<std::string> glyphs = {to - from == 1 ? " " : p == 0 ? "▏" : "&"};
      const std::string id = std::to_string(part.microbatch >= 0 ? part.microbatch : part.stage);
      if (fits) {
        for (const char digit : id) glyphs.emplace_back(1, digit);
      }
      glyphs.resize(static_cast<size_t>(std::max(end - begin, 0)), " ");
      for (int at = begin; at < end; ++at) {
        (*line)[static_cast<size_t>(at)] = {glyphs[static_cast<size_t>(at - begin)], ColorOf(part)};
      }
    }
  }

  /// The band that begins at column `from`.
  std::string Line(const std::string& prefix, const std::vector<Column>& line, int from) const {
    const int to = std::min(from + band_, columns_);
    std::string out = prefix;
    int color = kIdle;
    for (int at = from; at < to; ++at) {
      const Column& column = line[static_cast<size_t>(at)];
      if (column.color != color) out += Switch(column.color);
      color = column.color;
      const bool quiet = style_.color && column.color == kIdle && column.glyph == ".";
      out += quiet ? " " : column.glyph;
    }
    if (color != kIdle) out += Switch(kIdle);
    out.erase(out.find_last_not_of(' ') + 1);
    return out + "\n";
  }

  std::string Switch(int color) const {
    if (color == kIdle) return "\x1b[0m";
    return "\x1b[38;5;16;48;5;" + std::to_string(color) + "m";
  }

  std::string Legend() const {
    std::string out;
    for (const Op op : KindsIn(picture_)) {
      out += (style_.color ? Swatch(op) + std::string(Name(op)) + " " : Sample(op)) +
             std::string(Explain(op)) + "\n";
    }
    if (!style_.color) out += "  .       idle\n";
    if (!picture_.sides.empty()) {
      out += (style_.color ? "  the darker colours: " : "  f3 bw3  ") + picture_.sides + "\n";
    }
    return out + "Numbers are micro-batches; times are in " +
           (picture_.unit == Unit::kUnit ? "the unit of the costs"
                                         : std::string(Name(picture_.unit))) +
           ".\n";
  }

  std::string Sample(Op op) const {
    std::string text = op == Op::FB ? "F3&BW1" : std::string(Letters(op)) + "3";
    text.resize(8, ' ');
    return "  " + text;
  }

  std::string Swatch(Op op) const {
    const Part first = {op == Op::FB ? Op::F : op, 0, 0, 0};
    std::string text = "  " + Switch(ColorOf(first)) + "▏3 ";
    if (op == Op::FB) text += Switch(ColorOf({Op::BW, 0, 0, 0})) + "&1 ";
    return text + Switch(kIdle) + (op == Op::FB ? "  " : "     ");
  }

  const Picture& picture_;
  const GridStyle style_;
  int prefix_ = 0;    // columns before the picture
  int room_ = 1;      // columns for the picture on a line
  double scale_ = 0;  // columns a tick
  int columns_ = 0;   // of the whole picture
  int band_ = 1;      // columns of a band
  Time step_ = 1;     // between two marks of the ruler
};

}  // namespace

std::string DrawGrid(const Picture& picture, const GridStyle& style) {
  return Grid(picture, style).Draw();
}

}  // namespace contraflow
