#pragma once

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

}  // namespace contraflow
