#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>

#include "tools/pictures/picture.h"

// The colours of a kind differ in lightness as well as in hue, so that they stay apart for who sees
// no red or no green, and in print. With more than two stages a rank the hue tells the stage and
// the lightness the kind.

namespace contraflow {
namespace {

struct KindColors {
  Op kind;
  std::array<uint32_t, 2> sides;
};

constexpr KindColors kColors[] = {
    {Op::F, {0xffd166, 0xf4a259}},          {Op::ATTN_F, {0xffd166, 0xf4a259}},
    {Op::BW, {0x8fd694, 0x57b371}},         {Op::B, {0xa6dbff, 0x5fb0ee}},
    {Op::ATTN_B, {0xa6dbff, 0x5fb0ee}},     {Op::W, {0xa79bd8, 0x8673bf}},
    {Op::ATTN_W, {0xa79bd8, 0x8673bf}},     {Op::R, {0xd9b02c, 0xb07d1a}},
    {Op::ATTN_R, {0xd9b02c, 0xb07d1a}},     {Op::DISPATCH_R, {0xd4bb7e, 0xbd9f57}},
    {Op::DISPATCH_F, {0xe3c9a8, 0xcfa877}}, {Op::COMBINE_B, {0xa8dcd9, 0x6fbcb8}},
};
constexpr uint32_t kOther = 0xc9ccd3;

/// Hues of the stages of a rank where there are more than two.
constexpr std::array<uint32_t, kSideColors> kHues = {0x4477bb, 0xee7722, 0x1f8a6d, 0xb0459b,
                                                     0xeed633, 0x55c8f0, 0xb5483a, 0x888888};

/// How much of white is in the colour of a kind where the hue tells the stage, in hundredths.
uint32_t WhiteOf(Op kind) {
  if (kind == Op::F || kind == Op::ATTN_F) return 55;
  if (kind == Op::R || kind == Op::ATTN_R) return 45;
  if (kind == Op::B || kind == Op::BW || kind == Op::ATTN_B) return 28;
  if (kind == Op::W || kind == Op::ATTN_W) return 5;
  return 85;  // work that runs concurrently with them
}

uint32_t WithWhite(uint32_t color, uint32_t white) {
  uint32_t mixed = 0;
  for (const uint32_t shift : {16U, 8U, 0U}) {
    const uint32_t channel = color >> shift & 0xff;
    mixed |= (channel * (100 - white) + 255 * white + 50) / 100 << shift;
  }
  return mixed;
}

bool IsPlain(Op kind) {
  return std::none_of(std::begin(kColors), std::end(kColors),
                      [&](const KindColors& colors) { return colors.kind == kind; });
}

}  // namespace

uint32_t ColorOf(Op kind, int side, int sides) {
  if (IsPlain(kind)) return kOther;
  if (sides > 2) return WithWhite(kHues[static_cast<size_t>(side) % kHues.size()], WhiteOf(kind));
  const auto colors = std::find_if(std::begin(kColors), std::end(kColors),
                                   [&](const KindColors& row) { return row.kind == kind; });
  return colors->sides[static_cast<size_t>(side) % 2];
}

std::string ColorText(uint32_t color) {
  char text[16];
  std::snprintf(text, sizeof text, "#%06x", color);
  return text;
}

}  // namespace contraflow
