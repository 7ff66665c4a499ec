#include "tools/profile/gpus.h"

#include <string>

#include "compiler/files/json.h"
#include "compiler/plan/error.h"

namespace contraflow {
namespace {

/// Kernels of TransformerEngine alone on a B200; no step was looked at.
const MeasuredShares kB200Shares = {
    .bf16 =
        "matmul=0.48,experts=0.35,attention=0.38,head=0.47,memory=0.5,all-to-all=0.64,"
        "tensor-parallel=0.72",
    .fp8 = "attention=0.38,head=0.47,memory=0.5,all-to-all=0.64,tensor-parallel=0.72",
    .source =
        "SimuMax, configs/system/b200_bf16_ceperm.json at 4dcaae5, kernels timed one by one: "
        "matmuls 0.38 to 0.66, experts 0.22 to 0.46 at 512 and 1024 rows, causal attention "
        "0.25 to 0.44 of 8 to 128 heads, permutes 0.5, all-gathers 0.72 after 24 us and 8.6 us "
        "for each other GPU, all-to-alls 0.64"};

/// Matmuls and copies of a MI300X; no step was looked at.
const MeasuredShares kMi300xShares = {
    .bf16 = "matmul=0.58,head=0.58,memory=0.75",
    .fp8 = "head=0.58,memory=0.75",
    .source =
        "AMD-AGI/Primus, docs_deprecated/node-smoke.md at fd1eeab: matmul of 8192 x 8192 x "
        "8192 at 724 to 765 TFLOP/s, copies at 0.7 to 0.8; attention, experts and links are "
        "those of H100"};

// Data sheets give matrix FLOP/s of the Hopper and Blackwell parts with sparsity, twice what dense
// matrices get, and NVLink in both directions together, twice of one; both are halved here. The
// network is that of the vendor's own machine: one adapter a GPU.
const GpuSheet kGpus[] = {
    {.name = "a100",
     .bf16 = 312e12,
     .fp8 = 0,
     .hbm = 2039e9,
     .nvlink = 300e9,
     .network = 25e9,
     .memory = 80'000'000'000,
     .source = "A100 data sheet, SXM 80 GB: bf16 312 TFLOP/s, 2039 GB/s, NVLink 600 GB/s; DGX A100 "
               "data sheet: 200 Gb/s a GPU"},
    {.name = "a100-40gb",
     .bf16 = 312e12,
     .fp8 = 0,
     .hbm = 1555e9,
     .nvlink = 300e9,
     .network = 25e9,
     .memory = 40'000'000'000,
     .source = "A100 data sheet, SXM 40 GB: bf16 312 TFLOP/s, 1555 GB/s, NVLink 600 GB/s; DGX A100 "
               "data sheet: 200 Gb/s a GPU"},
    {.name = "a800",
     .bf16 = 312e12,
     .fp8 = 0,
     .hbm = 2039e9,
     .nvlink = 200e9,
     .network = 25e9,
     .memory = 80'000'000'000,
     .source = "A800 data sheet, SXM 80 GB: as the A100, with NVLink of 400 GB/s; network as of "
               "DGX A100: 200 Gb/s a GPU"},
    {.name = "b200",
     .bf16 = 2250e12,
     .fp8 = 4500e12,
     .hbm = 8e12,
     .nvlink = 900e9,
     .network = 50e9,
     .memory = 180'000'000'000,
     .source = "DGX B200 data sheet, an eighth of it: fp8 72 PFLOP/s with sparsity, bf16 half of "
               "that, 64 TB/s, NVLink 14.4 TB/s, 1440 GB; 400 Gb/s a GPU",
     .mx = true,
     .shares = kB200Shares,
     .collective = 24e-6,
     .hop = 8.6e-6},
    {.name = "b300",
     .bf16 = 2250e12,
     .fp8 = 4500e12,
     .hbm = 7.7e12,
     .nvlink = 900e9,
     .network = 100e9,
     .memory = 270'000'000'000,
     .source = "Blackwell data sheet, HGX B300: bf16 4.5 and fp8 9 PFLOP/s with sparsity, 270 GB, "
               "7.7 TB/s, NVLink 1.8 TB/s; DGX B300 data sheet: 800 Gb/s a GPU",
     .mx = true},
    {.name = "gb200",
     .bf16 = 2500e12,
     .fp8 = 5000e12,
     .hbm = 8e12,
     .nvlink = 900e9,
     .network = 50e9,
     .memory = 186'000'000'000,
     .source = "GB200 NVL72 data sheet, a 72nd of it: bf16 360 and fp8 720 PFLOP/s with sparsity, "
               "13.4 TB, 576 TB/s, NVLink 130 TB/s; 400 Gb/s a GPU",
     .node = 72,
     .mx = true},
    {.name = "gb300",
     .bf16 = 2500e12,
     .fp8 = 5000e12,
     .hbm = 8e12,
     .nvlink = 900e9,
     .network = 100e9,
     .memory = 279'000'000'000,
     .source = "GB300 NVL72 data sheet, a 72nd of it: bf16 360 and fp8 720 PFLOP/s with sparsity, "
               "20 TB, 576 TB/s, NVLink 130 TB/s; 800 Gb/s a GPU; Blackwell data sheet: 279 GB",
     .node = 72,
     .mx = true},
    {.name = "h100",
     .bf16 = 989.5e12,
     .fp8 = 1979e12,
     .hbm = 3.35e12,
     .nvlink = 450e9,
     .network = 50e9,
     .memory = 80'000'000'000,
     .source = "H100 data sheet, SXM: bf16 1979 and fp8 3958 TFLOP/s with sparsity, 3.35 TB/s, "
               "NVLink 900 GB/s; DGX H100 data sheet: 400 Gb/s a GPU"},
    {.name = "h20",
     .bf16 = 148e12,
     .fp8 = 296e12,
     .hbm = 4e12,
     .nvlink = 450e9,
     .network = 50e9,
     .memory = 96'000'000'000,
     .source =
         "HGX H20 brief, as resellers print it, for NVIDIA has no page of it: bf16 148 and fp8 296 "
         "TFLOP/s, 96 GB, 4 TB/s, NVLink 900 GB/s; network as of DGX H100: 400 Gb/s a GPU"},
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
    {.name = "l40s",
     .bf16 = 362.05e12,
     .fp8 = 733e12,
     .hbm = 864e9,
     .nvlink = 32e9,
     .network = 25e9,
     .memory = 48'000'000'000,
     .source = "L40S data sheet: bf16 362 and fp8 733 TFLOP/s without sparsity, 864 GB/s, 48 GB, "
               "PCIe 4.0 of 64 GB/s both ways; network assumed: 200 Gb/s a GPU",
     .link = "PCIe"},
    {.name = "mi300x",
     .bf16 = 1307.4e12,
     .fp8 = 2614.9e12,
     .hbm = 5.3e12,
     .nvlink = 448e9,
     .network = 50e9,
     .memory = 192'000'000'000,
     .source = "MI300X data sheet: bf16 1307.4 and fp8 2614.9 TFLOP/s without sparsity, 192 GB, "
               "5.3 TB/s, seven links of 128 GB/s both ways; network assumed: 400 Gb/s a GPU",
     .link = "Infinity Fabric",
     .shares = kMi300xShares},
    {.name = "mi355x",
     .bf16 = 2516.6e12,
     .fp8 = 5033.2e12,
     .hbm = 8e12,
     .nvlink = 537.6e9,
     .network = 50e9,
     .memory = 288'000'000'000,
     .source = "MI355X data sheet: bf16 2.5 and fp8 5 PFLOP/s without sparsity, 288 GB, 8 TB/s, "
               "seven links of 153.6 GB/s both ways; network assumed: 400 Gb/s a GPU",
     .link = "Infinity Fabric",
     .mx = true},
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
    list += (list.empty() ? "" : ", ") + gpu.name;
  }
  // No hint: names that differ by a letter are GPUs of another speed.
  throw Error("unknown GPU \"" + std::string(asked.substr(0, 64)) + "\"; known are: " + list +
              "; or give a FILE.json with its figures");
}

GpuSheet ReadGpuFile(std::string_view text, const std::string& place) {
  const JsonDocument document = ParseJson(text, place, {.comments = true});
  const JsonCursor root = document.Root();
  root.Keys("a GPU", {"name", "bf16_tflops", "fp8_tflops", "memory_gb", "memory_gb_per_s",
                      "link_gb_per_s", "network_gb_per_s", "node", "mx", "source", "efficiency",
                      "efficiency_fp8", "efficiency_source", "collective_us", "hop_us"});
  const auto number = [&](const char* key, const char* noun, double high) {
    return root.Required(key).Number(noun, 1, high);
  };
  GpuSheet sheet;
  sheet.name = root.Required("name").String("the GPU's name", 64);
  sheet.bf16 = number("bf16_tflops", "TFLOP/s without sparsity", 1e6) * 1e12;
  if (const auto fp8 = root.Optional("fp8_tflops")) {
    sheet.fp8 = fp8->Number("TFLOP/s without sparsity", 0, 1e6) * 1e12;
  }
  sheet.memory = static_cast<int64_t>(number("memory_gb", "GB", 1e5) * 1e9);
  sheet.hbm = number("memory_gb_per_s", "GB/s", 1e6) * 1e9;
  sheet.nvlink = number("link_gb_per_s", "GB/s in one direction", 1e6) * 1e9;
  sheet.network = number("network_gb_per_s", "GB/s in one direction", 1e6) * 1e9;
  if (const auto mx = root.Optional("mx"))
    sheet.mx = mx->Boolean("whether it takes microscaling formats");
  if (const auto node = root.Optional("node")) sheet.node = node->Integer("GPUs", 1, 1 << 16);
  const auto source = root.Optional("source");
  sheet.source = source ? source->String("where the figures are from", 1024) : place;
  sheet.link = "link";
  const auto shares = [&](const char* key, std::string* field) {
    const auto given = root.Optional(key);
    if (!given) return;
    *field = given->String("efficiencies", 256);
    given->Checked([&] {
      Efficiencies read = {};
      ParseEfficiencies(*field, &read);
      return read;
    });
  };
  const auto latency = [&](const char* key, double* field) {
    if (const auto given = root.Optional(key)) *field = given->Number("us", 0, 1e5) / 1e6;
  };
  latency("collective_us", &sheet.collective);
  latency("hop_us", &sheet.hop);
  shares("efficiency", &sheet.shares.bf16);
  shares("efficiency_fp8", &sheet.shares.fp8);
  const auto from = root.Optional("efficiency_source");
  sheet.shares.source = from ? from->String("where efficiencies are from", 1024) : place;
  return sheet;
}

}  // namespace contraflow
