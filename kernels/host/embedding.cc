#include "kernels/host/embedding.h"

#include <algorithm>
#include <cstddef>

namespace contraflow {

template <typename T>
void EmbeddingForward(const int32_t* tokens, const T* table, int rows, int width, T* y) {
  for (int t = 0; t < rows; ++t) {
    std::copy_n(table + static_cast<ptrdiff_t>(tokens[t]) * width, width,
                y + static_cast<ptrdiff_t>(t) * width);
  }
}

template <typename T>
void EmbeddingBackwardWeight(const int32_t* tokens, const T* dy, int rows, int width, T* dtable) {
  for (int t = 0; t < rows; ++t) {
    const T* from = dy + static_cast<ptrdiff_t>(t) * width;
    T* to = dtable + static_cast<ptrdiff_t>(tokens[t]) * width;
    for (int j = 0; j < width; ++j) to[j] += from[j];
  }
}

#define CF_INSTANTIATE(T)                                                 \
  template void EmbeddingForward(const int32_t*, const T*, int, int, T*); \
  template void EmbeddingBackwardWeight(const int32_t*, const T*, int, int, T*);
CF_INSTANTIATE(float)
CF_INSTANTIATE(double)
#undef CF_INSTANTIATE

}  // namespace contraflow
