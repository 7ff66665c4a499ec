#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace contraflow {

/// Kinds of work; each has one efficiency, the share of the GPU's peak:
///
///     matmul           projections and dense MLPs; share of the FLOP/s of its type
///     experts          the grouped matmuls of a device's experts
///     attention        queries by keys by values, always bf16; 2.5 times the work backward
///     head             the matmul with the vocabulary, always bf16
///     memory           norms, activation functions, casts, loss; share of the HBM bytes/s
///     all-to-all       dispatch and combine; share of the NVLink or network bytes/s
///     tensor-parallel  gathering and scattering the tokens of a tensor-parallel group; the same
///     p2p              a message between stages; share of the network bytes/s
enum class WorkKind : uint8_t {
  kMatmul,
  kExperts,
  kAttention,
  kHead,
  kMemory,
  kAllToAll,
  kTensorParallel,
  kP2p
};
inline constexpr size_t kWorkKinds = 8;
std::string_view Name(WorkKind kind);

using Efficiencies = std::array<double, kWorkKinds>;  ///< by WorkKind

/// Defaults for GPUs without measurements. The values of bf16 are those of large matmuls in
/// training. With the values of fp8, a dense layer is 1.3 to 1.45 times as fast, as is published.
/// Experts in fp8, memory and all-to-all are fitted to DeepSeek's training trace
/// (tests/tools/profile), where matmuls reach 0.35 and attention 0.34 during communication.
Efficiencies DefaultEfficiencies(bool fp8);

/// Puts "KIND=X,..." over them. Throws Error for a kind that there is none of, and a share that is
/// not above 0 and at most 1.
void ParseEfficiencies(std::string_view text, Efficiencies* efficiencies);

/// Efficiencies that were measured on one GPU, as ParseEfficiencies reads them.
struct MeasuredShares {
  std::string bf16, fp8;  ///< those that differ from the defaults
  std::string source;     ///< where they are from, and their range
};

}  // namespace contraflow
