#pragma once

#include <string>

#include "tools/pictures/picture.h"

namespace contraflow {

/// How much of a label a box of the text grid shows: the most that has room.
enum class LabelDetail { kLayer, kMicrobatch, kName };

/// "F12", of odd sides "f12"; of a component "AF12.0" (micro-batch and layer), "AF12" or "AF".
/// REDUCE and STEP show their stage. In colour, which tells what kind of work it is, "12", or
/// "A12.0" and so on.
std::string LabelOf(const Part& part, LabelDetail detail, bool color);

/// One letter, for boxes too narrow for a label: F B W, X of a full backward, & of a pair.
char SymbolOf(const Box& box);

/// Colour of a part's box: an index into the 256-colour palette.
int ColorOf(const Part& part);

/// The lines that say what labels and colours mean.
std::string GridLegend(const Picture& picture, bool color);

/// Switches the terminal to black on this colour, or with -1 back to its default.
std::string SwitchColor(int color);

}  // namespace contraflow
