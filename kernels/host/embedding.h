#pragma once

#include <cstdint>

namespace contraflow {

/// y[t] = table[tokens[t]], rows of `width`.
template <typename T>
void EmbeddingForward(const int32_t* tokens, const T* table, int rows, int width, T* y);

/// dtable[tokens[t]] += dy[t], in ascending t.
template <typename T>
void EmbeddingBackwardWeight(const int32_t* tokens, const T* dy, int rows, int width, T* dtable);

}  // namespace contraflow
