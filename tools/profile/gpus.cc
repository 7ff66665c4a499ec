#include "tools/profile/gpus.h"

#include <string>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

// Data sheets give matrix FLOP/s of the Hopper and Blackwell parts with sparsity, twice what dense
// matrices get, and NVLink in both directions together, twice of one; both are halved here. The
// network is that of the vendor's own machine of eight: one adapter a GPU.
constexpr GpuSheet kGpus[] = {
    {.name = "a100",
     .bf16 = 312e12,
     .fp8 = 0,
     .hbm = 2039e9,
     .nvlink = 300e9,
     .network = 25e9,
     .memory = 80'000'000'000,
     .source = "A100 data sheet, SXM 80 GB: bf16 312 TFLOP/s, 2039 GB/s, NVLink 600 GB/s; DGX A100 "
               "data sheet: 200 Gb/s a GPU"},
    {.name = "b200",
     .bf16 = 2250e12,
     .fp8 = 4500e12,
     .hbm = 8e12,
     .nvlink = 900e9,
     .network = 50e9,
     .memory = 180'000'000'000,
     .source = "DGX B200 data sheet, an eighth of it: fp8 72 PFLOP/s with sparsity, bf16 half of "
               "that, 64 TB/s, NVLink 14.4 TB/s, 1440 GB; 400 Gb/s a GPU"},
    {.name = "h100",
     .bf16 = 989.5e12,
     .fp8 = 1979e12,
     .hbm = 3.35e12,
     .nvlink = 450e9,
     .network = 50e9,
     .memory = 80'000'000'000,
     .source = "H100 data sheet, SXM: bf16 1979 and fp8 3958 TFLOP/s with sparsity, 3.35 TB/s, "
               "NVLink 900 GB/s; DGX H100 data sheet: 400 Gb/s a GPU"},
    {.name = "h200",
     .bf16 = 989.5e12,
     .fp8 = 1979e12,
     .hbm = 4.8e12,
     .nvlink = 450e9,
     .network = 50e9,
     .memory = 141'000'000'000,
     .source = "H200 data sheet, SXM: bf16 1979 and fp8 3958 TFLOP/s with sparsity, 4.8 TB/s, "
               "NVLink 900 GB/s; DGX H200 data sheet: 400 Gb/s a GPU"},
    {.name = "h800",
     .bf16 = 989.5e12,
     .fp8 = 1979e12,
     .hbm = 3.35e12,
     .nvlink = 200e9,
     .network = 50e9,
     .memory = 80'000'000'000,
     .source = "as the H100 data sheet, with NVLink of 400 GB/s; network as in arXiv 2412.19437: "
               "50 GB/s a GPU"},
};

}  // namespace

std::span<const GpuSheet> GpuSheets() { return kGpus; }

const GpuSheet& FindGpu(std::string_view asked) {
  std::string name(asked.substr(0, 64));
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  std::string list;
  for (const GpuSheet& gpu : kGpus) {
    if (gpu.name == name) return gpu;
    list += (list.empty() ? "" : ", ") + std::string(gpu.name);
  }
  // No hint: names that differ by a letter are GPUs of another speed.
  throw Error("unknown GPU \"" + std::string(asked.substr(0, 64)) + "\"; known are: " + list);
}

}  // namespace contraflow
