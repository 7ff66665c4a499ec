#include <algorithm>
#include <optional>

#include "compiler/files/json.h"
#include "tools/profile/layer_work.h"
#include "tools/profile/work_builder.h"

namespace contraflow {
namespace {

/// Keys that a query sees on average: those before it in its sequence, up to the window.
double MeanKeys(int64_t sequence, int64_t window) {
  const auto s = static_cast<double>(sequence), w = static_cast<double>(window);
  if (window == 0 || window >= sequence) return s / 2;
  return w - w * w / (2 * s);
}

/// The same of one key for N tokens.
double MeanCompressed(int64_t sequence, int64_t tokens, int64_t window) {
  return MeanKeys(std::max<int64_t>(1, sequence / tokens), window);
}

double KeysOf(const AttentionDims& a, int64_t sequence) {
  if (a.chunk > 0) return static_cast<double>(std::min(a.chunk, sequence)) / 2;
  if (a.out_groups > 0) {
    const double far = a.compress == 0 ? 0 : MeanCompressed(sequence, a.compress, a.indexer.top_k);
    return MeanKeys(sequence, a.window) + far;
  }
  return MeanKeys(sequence, a.indexer.heads > 0 ? a.indexer.top_k : a.window);
}

struct Heads {
  int64_t heads, keys;   ///< of a device
  int64_t q, k, v, out;  ///< columns
};

Heads HeadsOf(const WorkBuilder& builder) {
  const AttentionDims& a = builder.layer.attention;
  Heads heads = {};
  heads.heads = a.heads / builder.tp;
  heads.keys = std::max<int64_t>(1, a.kv_heads / builder.tp);
  heads.q = heads.heads * a.head_dim;
  heads.k = heads.keys * a.head_dim;
  heads.v = a.keys_are_values ? 0 : heads.keys * a.value_dim;
  heads.out = heads.heads * a.value_dim;
  return heads;
}

/// Queries, keys and values straight from the layer's input, and a gate of the output.
void AddProjections(const Heads& heads, WorkBuilder* builder) {
  const AttentionDims& a = builder->layer.attention;
  WorkBuilder& work = *builder;
  const int64_t own = a.borrows ? 0 : heads.k + heads.v;
  const int64_t columns = heads.q + own + (a.gated ? heads.out : 0);
  const int64_t rotated = heads.q + (a.borrows ? 0 : heads.k);
  work.Add({.name = a.borrows ? "q"
                    : a.gated ? "q, k, v, gate"
                              : "q, k, v",
            .rows = work.tokens,
            .in = work.hidden,
            .out = columns,
            .bias = a.qkv_bias});
  work.AddMemory("rotation of q, k", work.tokens, rotated, 2 * kBf16, 2 * kBf16);
  if (a.head_norms != HeadNorms::kNone) {
    work.AddMemory("norms of q, k", work.tokens, rotated, 2 * kBf16, 3 * kBf16);
    if (a.head_norms == HeadNorms::kWide) {
      work.AddParameters(rotated);
    } else {
      work.AddParameters(a.borrows ? 1 : 2, a.head_dim);
    }
    work.Keep("q, k before their norms", KeptUntil::kB, work.tokens, rotated, kBf16);
  }
  work.Keep("q, k, v", KeptUntil::kB, work.tokens, columns, kBf16);
  work.Keep("gradients of q, k, v", KeptUntil::kFromBToW, work.tokens, columns, work.cast);
}

/// The same from latents: what makes these is on every device of a tensor-parallel group, which
/// share its tokens.
void AddLatentProjections(const Heads& heads, WorkBuilder* builder) {
  const AttentionDims& a = builder->layer.attention;
  WorkBuilder& work = *builder;
  const int64_t plain = a.head_dim - a.rope_dim;
  const int64_t kv_columns = heads.heads * (plain + a.value_dim);
  if (a.q_latent > 0) {
    work.Add({.name = "q latent",
              .rows = work.own_tokens,
              .in = work.hidden,
              .out = a.q_latent,
              .bias = a.qkv_bias});
    work.Add({.name = "q", .rows = work.tokens, .in = a.q_latent, .out = heads.q});
    work.AddParameters(a.q_latent);
    work.Keep("q latent", KeptUntil::kB, work.own_tokens, a.q_latent, kBf16);
    work.Keep("q latent, normed", KeptUntil::kW, work.tokens, a.q_latent, work.cast);
  } else {
    work.Add({.name = "q", .rows = work.tokens, .in = work.hidden, .out = heads.q});
  }
  const int64_t latent = a.kv_latent + a.rope_dim;
  work.Add({.name = "k, v latent",
            .rows = work.own_tokens,
            .in = work.hidden,
            .out = latent,
            .bias = a.qkv_bias});
  work.Add({.name = "k, v", .rows = work.tokens, .in = a.kv_latent, .out = kv_columns});
  work.AddParameters(a.kv_latent);
  work.AddMemory("norms of latents", work.own_tokens, a.q_latent + a.kv_latent, 2 * kBf16,
                 3 * kBf16);
  work.AddMemory("rotation of q, k", work.tokens, 2 * heads.q, 2 * kBf16, 2 * kBf16);
  work.Keep("k, v latent", KeptUntil::kB, work.own_tokens, latent, kBf16);
  work.Keep("k, v latent, normed", KeptUntil::kW, work.tokens, a.kv_latent, work.cast);
  work.Keep("q, k, v", KeptUntil::kB, work.tokens, heads.q + heads.k + heads.v, kBf16);
  work.Keep("gradients of q, k, v", KeptUntil::kFromBToW, work.tokens, heads.q + kv_columns,
            work.cast);
  work.Keep("gradients of latents", KeptUntil::kFromBToW, work.own_tokens, a.q_latent + latent,
            work.cast);
}

/// DeepSeek-V4 (its report, section 2.3): queries from a latent, one head of keys that are the
/// values too, and keys for `compress` tokens: a mean that a second matrix weighs, over twice as
/// many with an indexer.
void AddSharedKeyProjections(const Heads& heads, WorkBuilder* builder) {
  const AttentionDims& a = builder->layer.attention;
  WorkBuilder& work = *builder;
  work.Add({.name = "q latent", .rows = work.own_tokens, .in = work.hidden, .out = a.q_latent});
  work.Add({.name = "q", .rows = work.tokens, .in = a.q_latent, .out = heads.q});
  const int64_t series = a.indexer.heads > 0 ? 2 : 1;
  const int64_t wide = a.compress > 0 ? 2 * series * a.head_dim : 0;
  work.Add({.name = "keys, compressor",
            .rows = work.own_tokens,
            .in = work.hidden,
            .out = a.head_dim + wide});
  // Norms of q's latent, of keys and of compressed ones; a place for each token of a compressed
  // key.
  work.AddParameters(a.q_latent + a.head_dim);
  if (a.compress > 0) work.AddParameters(a.head_dim + a.compress * series * a.head_dim);
  work.AddMemory("norms, rotation, compression", work.tokens, heads.q + 2 * a.head_dim, 4 * kBf16,
                 5 * kBf16);
  work.Keep("q latent", KeptUntil::kB, work.own_tokens, a.q_latent, kBf16);
  work.Keep("q latent, normed", KeptUntil::kW, work.tokens, a.q_latent, work.cast);
  work.Keep("q, keys", KeptUntil::kB, work.tokens, heads.q, kBf16);
  work.Keep("keys, compressor", KeptUntil::kB, work.own_tokens, a.head_dim + wide, kBf16);
  work.Keep("gradients of q, keys", KeptUntil::kFromBToW, work.tokens, heads.q, work.cast);
}

/// The lightning indexer (arXiv 2512.02556, section 2.1): its heads' queries from q's latent, one
/// key, a weight for each head. It learns from attention's own scores, apart from the model.
void AddIndexer(WorkBuilder* builder) {
  const AttentionDims& a = builder->layer.attention;
  const IndexerDims& index = a.indexer;
  WorkBuilder& work = *builder;
  const bool compressed = a.out_groups > 0;
  const int64_t key_columns = compressed ? 4 * index.head_dim : index.head_dim;
  work.Add({.name = "indexer's q",
            .rows = work.own_tokens,
            .in = a.q_latent > 0 ? a.q_latent : work.hidden,
            .out = index.heads * index.head_dim});
  work.Add({.name = "indexer's keys, weights",
            .rows = work.own_tokens,
            .in = work.hidden,
            .out = key_columns + index.heads});
  // A norm with a bias; or one without, and a place for each token.
  work.AddParameters(compressed ? index.head_dim + a.compress * 2 * index.head_dim
                                : 2 * index.head_dim);
  const double keys = compressed ? MeanCompressed(work.setup.sequence, a.compress, 0)
                                 : MeanKeys(work.setup.sequence, 0);
  const double flops = static_cast<double>(2 * work.own_tokens * index.heads * index.head_dim);
  work.Add(LayerPart{.name = "indexer's scores",
                     .kind = WorkKind::kAttention,
                     .f = {flops * keys, 0},
                     .b = {2 * flops * keys, 0},
                     .w = {},
                     .formula = Product({2, work.own_tokens, index.heads, index.head_dim}) + " x " +
                                FormatReal(keys) + " keys, b twice that"});
  work.Keep("indexer's q, keys", KeptUntil::kB, work.own_tokens,
            index.heads * (index.head_dim + 1) + key_columns, kBf16);
  work.Keep("choice of keys", KeptUntil::kB, work.own_tokens,
            std::min(index.top_k, work.setup.sequence), 4);
}

/// Flash attention: scores are never stored, and made again by the backward. Keys that are chosen
/// for each query are latents, which all heads share (arXiv 2512.02556, section 2.1); in short
/// sequences a mask over all keys, as in plain attention, is less. Devices that split a sequence
/// pass their keys and values around a ring (arXiv 2310.01889), back with their gradients.
void AddCore(const Heads& heads, WorkBuilder* builder) {
  const AttentionDims& a = builder->layer.attention;
  WorkBuilder& work = *builder;
  double keys = KeysOf(a, work.setup.sequence);
  int64_t dims = a.head_dim + a.value_dim;
  const double all = MeanKeys(work.setup.sequence, 0);
  if (const int64_t wide = 2 * a.kv_latent + a.rope_dim; a.latents() && keys < all) {
    if (static_cast<double>(wide) * keys < static_cast<double>(dims) * all) {
      dims = wide;
    } else {
      keys = all;
    }
  }
  const auto products =
      static_cast<double>(2 * work.tokens * heads.heads) * static_cast<double>(dims);
  const double flops = products * keys;
  const double bytes = static_cast<double>(work.tokens * kBf16) *
                       static_cast<double>(heads.q + heads.k + heads.v + heads.out);
  const int64_t others = work.setup.context_parallel - 1;
  const double ring =
      static_cast<double>(others * work.tokens * kBf16) * static_cast<double>(heads.k + heads.v);
  std::string formula = Product({2, work.tokens, heads.heads, dims}) + " x " + FormatReal(keys) +
                        " keys, b 2.5 times that";
  if (others > 0) {
    formula += "; meanwhile keys and values go around cp, " +
               Product({others, work.tokens, heads.k + heads.v}) + " x 2 bytes, b twice that";
  }
  work.Add(LayerPart{.name = "attention",
                     .kind = WorkKind::kAttention,
                     .f = {.flops = flops, .bytes = bytes, .ring = ring},
                     .b = {.flops = 2.5 * flops, .bytes = 2 * bytes, .ring = 2 * ring},
                     .w = {},
                     .formula = formula});
  work.Keep("attention", KeptUntil::kW, work.tokens, heads.out, kBf16);
  work.Keep("sums of scores", KeptUntil::kB, work.tokens, heads.heads, 4);
  if (a.gated) {
    work.AddMemory("gate of attention", work.tokens, heads.out, 3 * kBf16, 5 * kBf16);
    work.Keep("attention, gated", KeptUntil::kW, work.tokens, heads.out, work.cast);
  }
}

}  // namespace

void AddAttention(WorkBuilder* builder) {
  WorkBuilder& work = *builder;
  const AttentionDims& a = work.layer.attention;
  const Heads heads = HeadsOf(work);
  if (a.latents()) {
    AddLatentProjections(heads, builder);
  } else if (a.out_groups > 0) {
    AddSharedKeyProjections(heads, builder);
  } else {
    AddProjections(heads, builder);
  }
  if (a.indexer.heads > 0) AddIndexer(builder);
  AddCore(heads, builder);
  if (a.sinks) work.AddParameters(heads.heads);
  int64_t columns = heads.out;
  if (a.out_groups > 0) {
    // Each group of heads has a matrix to a latent of its own.
    const int64_t groups = std::max<int64_t>(1, a.out_groups / work.tp);
    work.Add({.name = "out latents",
              .rows = work.tokens * groups,
              .in = heads.out / groups,
              .out = a.out_latent,
              .matrices = groups});
    columns = groups * a.out_latent;
    work.Keep("out latents", KeptUntil::kW, work.tokens, columns, work.cast);
  }
  work.Add(
      {.name = "out", .rows = work.tokens, .in = columns, .out = work.hidden, .bias = a.out_bias});
}

}  // namespace contraflow
