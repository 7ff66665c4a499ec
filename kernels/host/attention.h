#pragma once

namespace contraflow {

/// Sizes of a batch of causal self-attentions over qkv[batch * sequence x 3 * heads * head_width]:
/// queries, keys, values of a token side by side, heads contiguous in each.
struct AttentionShape {
  int batch, sequence, heads, head_width;
};

/// probabilities[batch x heads x sequence x sequence] = softmax(q k^T / sqrt(head_width)) over the
/// positions up to the token's own, 0 behind it; out[batch * sequence x heads * head_width] = the
/// values weighted with them.
template <typename T>
void AttentionForward(const AttentionShape& shape, const T* qkv, T* probabilities, T* out);

/// Gradient of queries, keys and values, in the layout of qkv; `work` has sequence x sequence
/// elements. Has no weights of its own.
template <typename T>
void AttentionBackwardInput(const AttentionShape& shape, const T* qkv, const T* probabilities,
                            const T* dout, T* work, T* dqkv);

}  // namespace contraflow
