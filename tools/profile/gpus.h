#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tools/profile/efficiency.h"

namespace contraflow {

/// Best figures of a GPU, by its data sheet; `costs init` multiplies it with efficiencies.
struct GpuSheet {
  std::string name;
  double bf16 = 0;     ///< FLOP/s of its matrix units, without sparsity
  double fp8 = 0;      ///< the same; 0: it has none
  double hbm = 0;      ///< bytes/s of its memory
  double nvlink = 0;   ///< bytes/s to the others of its node, in one direction
  double network = 0;  ///< bytes/s to other nodes, in one direction
  int64_t memory = 0;  ///< bytes
  std::string source;
  int64_t node = 8;             ///< GPUs that such links join
  std::string link = "NVLink";  ///< their link
  bool mx = false;              ///< its matrix units take formats with a scale for 32 values
  MeasuredShares shares = {};
  /// Latency of a collective in a node, in seconds: a constant, and a part for each GPU but one.
  /// With 0 it is not known, and all collectives of a pass take kNodeLatency.
  double collective = 0, hop = 0;
};

std::span<const GpuSheet> GpuSheets();

/// Throws Error with the known names.
const GpuSheet& FindGpu(std::string_view name);

/// Largest file with a sheet.
inline constexpr int64_t kMaxGpuFileBytes = 1 << 16;
/// Reads a sheet: an object with "name", "bf16_tflops", "fp8_tflops" (without sparsity; left out:
/// none), "mx" (it takes microscaling formats; default: false), "memory_gb", "memory_gb_per_s",
/// "link_gb_per_s", "network_gb_per_s" (each way; GB are 10^9 bytes), "node" (default 8) and
/// "source"; also "efficiency" of bf16 and "efficiency_fp8", as "matmul=0.5,head=0.4", from
/// "efficiency_source", and "collective_us" and "hop_us". Throws Error that begins with `place` and
/// has the JSON path.
GpuSheet ReadGpuFile(std::string_view text, const std::string& place);

}  // namespace contraflow
