#include "runtime/gpu/products.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/gpu/embedding_and_loss.h"
#include "kernels/gpu/exchange.h"
#include "kernels/gpu/rmsnorm.h"
#include "kernels/gpu/routing.h"
#include "kernels/host/attention.h"

namespace contraflow {
namespace {

using gpu::Bf16;
using gpu::MatmulShape;

MatmulShape Forward(const LayerShape& n, int in, int out) {
  return {.m = n.tokens, .n = out, .k = in};
}
MatmulShape ForwardFloat(const LayerShape& n, int in, int out) {
  return {.m = n.tokens, .n = out, .k = in, .float_out = true};
}
MatmulShape ForwardAdd(const LayerShape& n) {
  return {.m = n.tokens, .n = n.width, .k = n.width, .add = true};
}
MatmulShape BackwardInput(const LayerShape& n, int in, int out, bool add) {
  return {.transpose_b = Transpose::kYes, .m = n.tokens, .n = in, .k = out, .add = add};
}
MatmulShape BackwardWeight(const LayerShape& n, int in, int out) {
  return {.transpose_a = Transpose::kYes,
          .m = in,
          .n = out,
          .k = n.tokens,
          .float_out = true,
          .add = true};
}

/// Bytes that any of the kernels but the attention needs; those of a lane run one after the other.
size_t WorkBytes(const LayerShape& n) {
  return std::max({gpu::Matmuls::kWorkBytes, gpu::SortWork(n.tokens, n.experts, n.top_k),
                   gpu::EmbeddingWork(n.tokens, n.vocabulary),
                   gpu::RmsNormWork(n.tokens, n.width) * sizeof(float)});
}

}  // namespace

std::vector<MatmulShape> MatmulsOf(const LayerShape& n) {
  const int d = n.width;
  std::vector<MatmulShape> shapes = {
      Forward(n, d, 3 * d),
      ForwardAdd(n),
      ForwardFloat(n, d, n.experts),
      Forward(n, d, n.vocabulary),
      BackwardInput(n, d, 3 * d, false),
      BackwardInput(n, d, d, false),
      BackwardInput(n, d, n.experts, true),
      BackwardInput(n, d, n.vocabulary, false),
  };
  for (const int out : {3 * d, d, n.experts, n.vocabulary}) {
    shapes.push_back(BackwardWeight(n, d, out));
  }
  return shapes;
}

gpu::ExpertsSizes ExpertsOf(const LayerShape& n) {
  return {n.local_experts, n.width, n.expert_width, n.expert_rows};
}

void FillOnDevice(Gpu& gpu, gpu::Stream stream, std::byte* at, size_t bytes,
                  std::span<const std::byte> pattern) {
  gpu.CopyToDevice(stream, at, pattern.data(), std::min(pattern.size(), bytes));
  for (size_t done = pattern.size(); done < bytes;) {
    const size_t more = std::min(done, bytes - done);
    gpu::LinkCopy(stream, at, at + done, more, stream.sms);
    done += more;
  }
  gpu.Synchronize();
}

void PoisonOnDevice(Gpu& gpu, gpu::Stream stream, std::byte* at, size_t bytes) {
  const std::vector<std::byte> seed(std::min<size_t>(bytes, size_t{64} << 10), std::byte{0xff});
  FillOnDevice(gpu, stream, at, bytes, seed);
}

Arenas AllocateArenas(const std::array<int64_t, kArenaCount>& bytes, Gpu& gpu, gpu::Stream stream,
                      const AllocateMemory& allocate) {
  constexpr size_t kGrain = 4096;
  const auto rounded = [&](size_t a) {
    return (static_cast<size_t>(bytes[a]) + kGrain - 1) / kGrain * kGrain;
  };
  Arenas arenas;
  size_t total = 0;
  for (size_t a = 0; a < kArenaCount; ++a) total += rounded(a);
  if (allocate) arenas.all = allocate(total);
  for (size_t a = 0, begin = 0; a < kArenaCount; begin += rounded(a), ++a) {
    if (bytes[a] == 0) continue;
    const auto size = static_cast<size_t>(bytes[a]);
    arenas.at[a] = allocate ? arenas.all.data() + begin : gpu.Allocate(size);
    PoisonOnDevice(gpu, stream, arenas.at[a], size);
  }
  return arenas;
}

GpuProducts::GpuProducts(const LayerShape& shape, Gpu& gpu, gpu::Stream setup, int compute_sms,
                         const MatmulChoices& choices)
    : shape_(shape),
      matmuls_(compute_sms),
      attention_({shape.batch, shape.sequence, shape.heads, shape.head_width}, compute_sms) {
  for (const MatmulShape& product : MatmulsOf(shape_)) {
    const auto chosen = choices.find(product);
    if (chosen == choices.end()) {
      matmuls_.Prepare(product);
    } else {
      matmuls_.Prepare(product, chosen->second);
    }
  }
  const auto angles =
      static_cast<size_t>(shape.sequence) * static_cast<size_t>(shape.head_width / 2);
  std::vector<float> cosine(angles), sine(angles);
  FillRopeTable(shape.sequence, shape.head_width, cosine.data(), sine.data());
  const auto on_device = [&](const std::vector<float>& table) {
    const size_t bytes = table.size() * sizeof(float);
    auto* const at = reinterpret_cast<float*>(gpu.Allocate(bytes));
    gpu.CopyToDevice(setup, at, table.data(), bytes);
    return at;
  };
  cosine_ = on_device(cosine);
  sine_ = on_device(sine);
  const size_t work = WorkBytes(shape_);
  work_ = {gpu.Allocate(std::max(work, attention_.work_bytes())), gpu.Allocate(work)};
  gpu.Synchronize();
}

void GpuProducts::Linear(GpuLane at, const Bf16* x, const Bf16* w, int in, int out, Bf16* y) const {
  matmuls_.Run(at.stream, Forward(shape_, in, out), x, w, nullptr, y, at.work);
}

void GpuProducts::Linear(GpuLane at, const Bf16* x, const Bf16* w, int in, int out,
                         float* y) const {
  matmuls_.Run(at.stream, ForwardFloat(shape_, in, out), x, w, nullptr, y, at.work);
}

void GpuProducts::LinearAdd(GpuLane at, const Bf16* x, const Bf16* w, const Bf16* before,
                            Bf16* y) const {
  matmuls_.Run(at.stream, ForwardAdd(shape_), x, w, before, y, at.work);
}

void GpuProducts::LinearBackwardInput(GpuLane at, const Bf16* dy, const Bf16* w, int in, int out,
                                      Bf16* dx) const {
  matmuls_.Run(at.stream, BackwardInput(shape_, in, out, false), dy, w, nullptr, dx, at.work);
}

void GpuProducts::LinearBackwardInputAdd(GpuLane at, const Bf16* dy, const Bf16* w, int in, int out,
                                         Bf16* dx) const {
  matmuls_.Run(at.stream, BackwardInput(shape_, in, out, true), dy, w, dx, dx, at.work);
}

void GpuProducts::LinearBackwardWeight(GpuLane at, const Bf16* x, const Bf16* dy, int in, int out,
                                       float* dw) const {
  matmuls_.Run(at.stream, BackwardWeight(shape_, in, out), x, dy, dw, dw, at.work);
}

}  // namespace contraflow
