#include "tools/profile/efficiency.h"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

constexpr std::string_view kNames[kWorkKinds] = {"matmul", "experts",    "attention",       "head",
                                                 "memory", "all-to-all", "tensor-parallel", "p2p"};

/// One "KIND=X".
void ParseOne(std::string_view entry, Efficiencies* efficiencies) {
  const std::string shown = "\"" + std::string(entry.substr(0, 64)) + "\"";
  const size_t equals = entry.find('=');
  if (equals == std::string_view::npos) {
    throw Error("must be KIND=X, as in \"matmul=0.6\", is " + shown);
  }
  const std::string_view name = entry.substr(0, equals), number = entry.substr(equals + 1);
  const auto kind = std::find(std::begin(kNames), std::end(kNames), name);
  if (kind == std::end(kNames)) {
    std::string list;
    for (const std::string_view known : kNames) {
      list += (list.empty() ? "" : ", ") + std::string(known);
    }
    throw Error("unknown kind of work in " + shown + DidYouMean(name.substr(0, 64), kNames) +
                "; known are: " + list);
  }
  double share = 0;
  const char* const end = number.data() + number.size();
  const auto [at, error] = std::from_chars(number.data(), end, share);
  // Below a millionth it is a mistake, and times would overflow.
  if (error != std::errc() || at != end || !(share >= 1e-6 && share <= 1)) {
    throw Error("the efficiency in " + shown + " must be a share in 1e-6..1, as 0.6");
  }
  (*efficiencies)[static_cast<size_t>(kind - std::begin(kNames))] = share;
}

}  // namespace

std::string_view Name(WorkKind kind) { return kNames[static_cast<size_t>(kind)]; }

Efficiencies DefaultEfficiencies(bool fp8) {
  Efficiencies efficiencies;
  const auto set = [&](WorkKind kind, double share) {
    efficiencies[static_cast<size_t>(kind)] = share;
  };
  set(WorkKind::kMatmul, fp8 ? 0.52 : 0.65);
  set(WorkKind::kExperts, fp8 ? 0.42 : 0.55);
  set(WorkKind::kAttention, 0.5);
  set(WorkKind::kHead, 0.65);
  set(WorkKind::kMemory, 0.7);
  set(WorkKind::kAllToAll, 0.75);
  set(WorkKind::kTensorParallel, 0.75);
  set(WorkKind::kP2p, 0.75);
  return efficiencies;
}

void ParseEfficiencies(std::string_view text, Efficiencies* efficiencies) {
  for (;;) {
    const size_t comma = text.find(',');
    ParseOne(text.substr(0, comma), efficiencies);
    if (comma == std::string_view::npos) return;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace contraflow
