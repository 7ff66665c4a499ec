#include "compiler/plan/mark.h"

#include <algorithm>
#include <charconv>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

constexpr std::string_view kNames[] = {"IDLE",    "WAIT_SEND_F", "WAIT_SEND_B",     "UNSHARD",
                                       "RESHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD"};
static_assert(std::size(kNames) == kMarkKinds);

/// The number after `key`, if `text` goes on with it: cut off, else -1.
int32_t Take(std::string_view key, std::string_view* text) {
  if (!text->starts_with(key)) return -1;
  const std::string_view digits = text->substr(key.size());
  int32_t number = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc()) return -1;
  *text = digits.substr(static_cast<size_t>(end - digits.data()));
  return number;
}

}  // namespace

std::string_view Name(MarkKind kind) {
  CF_ASSERT(static_cast<int>(kind) < kMarkKinds);
  return kNames[static_cast<size_t>(kind)];
}

std::string ToString(const Mark& mark) {
  std::string text(Name(mark.kind));
  if (mark.stage >= 0) text += " s" + std::to_string(mark.stage);
  if (mark.microbatch >= 0) text += " m" + std::to_string(mark.microbatch);
  text += " before=" + std::to_string(mark.before);
  if (mark.count != 1) text += " count=" + std::to_string(mark.count);
  return text;
}

Mark ParseMark(std::string_view text) {
  const std::string_view name = text.substr(0, text.find(' '));
  const auto* const known = std::find(std::begin(kNames), std::end(kNames), name);
  const std::string shown(text.substr(0, 64));
  if (known == std::end(kNames)) {
    throw Error("unknown mark \"" + shown + "\"" +
                DidYouMean(std::string(name.substr(0, 32)), kNames));
  }
  Mark mark;
  mark.kind = static_cast<MarkKind>(known - std::begin(kNames));
  std::string_view rest = text.substr(name.size());
  if (mark.kind != MarkKind::kIdle) mark.stage = Take(" s", &rest);
  if (IsWaitSend(mark.kind)) mark.microbatch = Take(" m", &rest);
  mark.before = Take(" before=", &rest);
  if (mark.kind == MarkKind::kIdle && !rest.empty()) mark.count = Take(" count=", &rest);
  // Whatever is missing, repeated or not written as it would be comes out as another text.
  const bool whole = mark.before >= 0 && mark.count >= 1 &&
                     (mark.kind == MarkKind::kIdle || mark.stage >= 0) &&
                     (!IsWaitSend(mark.kind) || mark.microbatch >= 0);
  if (!whole || ToString(mark) != text) {
    throw Error("mark \"" + shown +
                "\": a mark is written like \"WAIT_SEND_F s3 m7 before=12\", \"UNSHARD s3 "
                "before=0\" or \"IDLE before=4 count=2\"");
  }
  return mark;
}

}  // namespace contraflow
