#include <algorithm>

#include "tools/profile/layer_work.h"
#include "tools/profile/work_builder.h"

namespace contraflow {
namespace {

/// Sizes of a device.
struct Sizes {
  int64_t heads, key_heads, inner, keys;
  int64_t columns;   ///< that the layer's input is projected to
  int64_t channels;  ///< of these those that the convolution mixes
  int64_t scales;    ///< parameters of heads and channels, without matrices and convolution
};

Sizes SizesOf(const WorkBuilder& work) {
  const LinearDims& d = work.layer.linear;
  Sizes s = {};
  s.heads = d.heads / work.tp;
  s.key_heads = std::max<int64_t>(1, d.key_heads / work.tp);
  s.inner = s.heads * d.value_dim;
  s.keys = s.key_heads * d.key_dim;
  switch (d.kind) {
    case LinearKind::kMamba:  // arXiv 2312.00752, section 3.4: x and z; A and D
      s.columns = 2 * s.inner;
      s.channels = s.inner;
      s.scales = s.inner * (d.key_dim + 1);
      break;
    case LinearKind::kMamba2:  // arXiv 2405.21060, section 8: z, x, B, C and dt; A, D, dt's bias
      s.columns = 2 * s.inner + 2 * s.keys + s.heads;
      s.channels = s.inner + 2 * s.keys;
      s.scales = 3 * s.heads;
      break;
    case LinearKind::kDeltaNet:  // arXiv 2412.06464, section 3.4: q, k, v, gate, alpha, beta
      s.columns = 2 * s.inner + 2 * s.keys + 2 * s.heads;
      s.channels = s.inner + 2 * s.keys;
      s.scales = 2 * s.heads;
      break;
    case LinearKind::kKda:  // arXiv 2510.26692, section 4: q, k, v, beta, latents of both gates
      s.columns = s.inner + 2 * s.keys + s.heads + 2 * d.rank;
      s.channels = s.inner + 2 * s.keys;
      s.scales = s.keys + s.heads;
      break;
    case LinearKind::kShortConv:  // LFM2: two gates and what they gate
      s.columns = 3 * s.inner;
      s.channels = s.inner;
      break;
  }
  return s;
}

/// FLOPs of a token: products of chunks, of which half is masked, and with the state.
double CoreFlops(const LinearDims& d, const Sizes& s) {
  const auto real = [](int64_t whole) { return static_cast<double>(whole); };
  const double state = real(s.heads) * real(d.key_dim) * real(d.value_dim);
  switch (d.kind) {
    case LinearKind::kMamba2:
      // Section 6: C B and times x in a chunk; the chunk's state, and C times the one before it.
      return real(d.chunk) * real(s.keys + s.inner) + 4 * state;
    case LinearKind::kDeltaNet:
    case LinearKind::kKda:
      // Section 3.3: k k, q k and T k, T v and scores v; the state with w, with q, and its update.
      return real(d.chunk) * real(s.heads) * real(3 * d.key_dim + 2 * d.value_dim) + 6 * state;
    case LinearKind::kMamba:
    case LinearKind::kShortConv:
      return 0;  // no matmuls: a scan, or the convolution
  }
  return 0;
}

}  // namespace

void AddLinearMixer(WorkBuilder* builder) {
  WorkBuilder& work = *builder;
  const LinearDims& d = work.layer.linear;
  const Sizes s = SizesOf(work);
  work.Add({.name = "mixer's inputs",
            .rows = work.tokens,
            .in = work.hidden,
            .out = s.columns,
            .bias = d.bias});
  work.AddMemory("convolution", work.tokens, s.channels, 2 * kBf16, 4 * kBf16);
  work.AddParameters(s.channels, d.kernel + (d.conv_bias ? 1 : 0));
  if (d.kind == LinearKind::kMamba) {
    work.Add(
        {.name = "dt, B, C", .rows = work.tokens, .in = s.inner, .out = d.rank + 2 * d.key_dim});
    work.Add(
        {.name = "time steps", .rows = work.tokens, .in = d.rank, .out = s.inner, .bias = true});
    // In, out and time steps; the state stays on chip (arXiv 2312.00752, section 3.3).
    work.AddMemory("scan", work.tokens, s.inner, 4 * kBf16, 8 * kBf16);
    work.Keep("mixer, time steps", KeptUntil::kB, work.tokens, 2 * s.inner, kBf16);
  }
  if (d.kind == LinearKind::kKda) {
    work.Add({.name = "decay", .rows = work.tokens, .in = d.rank, .out = s.keys});
    work.Add({.name = "gate", .rows = work.tokens, .in = d.rank, .out = s.inner});
    work.Keep("decay, gate", KeptUntil::kB, work.tokens, s.keys + s.inner, kBf16);
  }
  work.AddParameters(s.scales);
  if (const double flops = CoreFlops(d, s) * static_cast<double>(work.tokens); flops > 0) {
    const double bytes = static_cast<double>(work.tokens * kBf16 * (s.channels + s.inner));
    // Backward, states are made again, and each product has two gradients.
    work.Add(LayerPart{.name = "chunks and states",
                       .kind = WorkKind::kAttention,
                       .f = {flops, bytes},
                       .b = {3 * flops, 3 * bytes},
                       .w = {},
                       .formula = Product({work.tokens, s.heads}) + " heads, state " +
                                  Product({d.key_dim, d.value_dim}) + ", chunks of " +
                                  std::to_string(d.chunk) + ", b 3 times that"});
  }
  work.AddMemory("gate of the mixer", work.tokens, s.inner, 3 * kBf16, 5 * kBf16);
  if (d.norm) work.AddParameters(d.kind == LinearKind::kMamba2 ? s.inner : d.value_dim);
  work.Keep("mixer's inputs", KeptUntil::kB, work.tokens, s.columns, kBf16);
  work.Keep("mixer", KeptUntil::kB, work.tokens, s.inner, kBf16);
  work.Keep("mixer, gated", KeptUntil::kW, work.tokens, s.inner, work.cast);
  work.Keep("gradients of mixer's inputs", KeptUntil::kFromBToW, work.tokens, s.columns, work.cast);
  work.Add({.name = "mixer's out",
            .rows = work.tokens,
            .in = s.inner,
            .out = work.hidden,
            .bias = d.bias});
}

}  // namespace contraflow
