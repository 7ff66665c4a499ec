#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace contraflow {

/// Best figures of a GPU, by its data sheet; `costs init` multiplies it with efficiencies.
struct GpuSheet {
  std::string_view name;
  double bf16 = 0;     ///< FLOP/s of its matrix units, without sparsity
  double fp8 = 0;      ///< the same; 0: it has none
  double hbm = 0;      ///< bytes/s of its memory
  double nvlink = 0;   ///< bytes/s to the others of its node, in one direction
  double network = 0;  ///< bytes/s to other nodes, in one direction
  int64_t memory = 0;  ///< bytes
  std::string_view source;
};

/// GPUs of a node, which NVLink joins.
inline constexpr int64_t kGpusOfNode = 8;

std::span<const GpuSheet> GpuSheets();

/// Throws Error with the known names.
const GpuSheet& FindGpu(std::string_view name);

}  // namespace contraflow
