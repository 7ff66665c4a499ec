#pragma once

// Causal self-attention, and the rotary embedding of its queries and keys.

namespace contraflow {

/// Angles of the rotary position embedding: cosine and sine [sequence x head_width / 2] of
/// position * 10000^(-2 i / head_width). head_width must be even.
template <typename T>
void FillRopeTable(int sequence, int head_width, T* cosine, T* sine);

/// Rotates, in place, the pairs (2i, 2i + 1) of every head of the queries and keys in
/// qkv[rows x 3 * heads * head_width] by the angle of the row's position, row mod sequence.
template <typename T>
void RopeForward(const T* cosine, const T* sine, int rows, int sequence, int heads, int head_width,
                 T* qkv);

/// The inverse rotation, which turns the gradient of the rotated into that of the plain values.
template <typename T>
void RopeBackwardInput(const T* cosine, const T* sine, int rows, int sequence, int heads,
                       int head_width, T* dqkv);

/// Sizes of a batch of causal self-attentions over qkv[batch * sequence x 3 * heads * head_width]:
/// queries, keys, values of a token side by side, heads contiguous in each.
struct AttentionShape {
  int batch, sequence, heads, head_width;
};

/// probabilities[batch x heads x sequence x sequence] = softmax(q k^T / sqrt(head_width)) over the
/// positions up to the token's own, 0 after it; out[batch * sequence x heads * head_width] = the
/// values weighted with them.
template <typename T>
void AttentionForward(const AttentionShape& shape, const T* qkv, T* probabilities, T* out);

/// Gradient of queries, keys and values, in the layout of qkv; `work` has sequence x sequence
/// elements. Has no weights of its own.
template <typename T>
void AttentionBackwardInput(const AttentionShape& shape, const T* qkv, const T* probabilities,
                            const T* dout, T* work, T* dqkv);

}  // namespace contraflow
