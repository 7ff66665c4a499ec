#include "tools/pictures/grid_label.h"

#include <cctype>

namespace contraflow {
namespace {

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
  if (op == Op::R) return "RF";  // a forward; R alone is REDUCE
  const std::string_view component = ShortName(op);
  return component.empty() ? Name(op) : component;
}

bool HasComponents(const Picture& picture) {
  return !picture.rows.empty() && !picture.rows[0].lane.empty();
}

/// What boxes of a kind look like, eight columns wide.
std::string Sample(Op kind) {
  std::string text = std::string(Letters(kind)) + "3";
  if (kind == Op::FB) text = "F3&BW1";
  if (!ShortName(kind).empty()) text = ShortNames(kind);
  text.resize(8, ' ');
  return "  " + text;
}

std::string Swatch(Op kind) {
  const bool component = !ShortName(kind).empty();
  const Part first = {kind == Op::FB ? Op::F : kind, 0, 0, 0};
  std::string text = "  " + SwitchColor(ColorOf(first)) + "▏";
  text += component ? Sample(kind).substr(2, 1) + " " + Sample(kind).substr(5, 1) + " " : "3 ";
  if (kind == Op::FB) text += SwitchColor(ColorOf({Op::BW, 0, 0, 0})) + "&1 ";
  return text + SwitchColor(-1) + (kind == Op::FB ? "  " : component ? "   " : "     ");
}

}  // namespace

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

int ColorOf(const Part& part) { return InkOf(part.op).side[part.side % 2]; }

std::string SwitchColor(int color) {
  if (color < 0) return "\x1b[0m";
  return "\x1b[38;5;16;48;5;" + std::to_string(color) + "m";
}

std::string GridLegend(const Picture& picture, bool color) {
  std::string out;
  const bool components = HasComponents(picture);
  for (const Op kind : KindsIn(picture)) {
    out += (color ? Swatch(kind) + (ShortName(kind).empty() ? std::string(Name(kind)) + " " : "")
                  : Sample(kind)) +
           std::string(Explain(kind)) + "\n";
  }
  if (!color) out += "  .       idle\n";
  if (!picture.sides.empty()) {
    const std::string sample = components ? "  af3 ab3 " : "  f3 bw3  ";
    out += (color ? "  the darker colours: " : sample) + picture.sides + "\n";
  }
  if (components) {
    const std::string name = color ? "A3.1" : "AF3.1";
    out += name + " is ATTN_F of micro-batch 3 in layer 1 of its stage; narrow boxes say less" +
           (color ? "" : ", at last only\nF forward, B backward, W weight gradient") + ". ";
  } else {
    out += "Numbers are micro-batches; ";
  }
  return out + (components ? "Times" : "times") + " are in " +
         (picture.unit == Unit::kUnit ? "the unit of the costs" : std::string(Name(picture.unit))) +
         ".\n";
}

}  // namespace contraflow
