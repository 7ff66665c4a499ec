#include "kernels/host/combine.h"

#include <algorithm>
#include <cstddef>

#include "kernels/host/dot.h"

namespace contraflow {

template <typename T>
void CombineForward(const T* residual, const T* sorted, const int32_t* row_of, const T* weight,
                    int rows, int top_k, int width, T* y) {
  for (int t = 0; t < rows; ++t) {
    T* out = y + static_cast<ptrdiff_t>(t) * width;
    std::copy_n(residual + static_cast<ptrdiff_t>(t) * width, width, out);
    for (int k = 0; k < top_k; ++k) {
      const ptrdiff_t pair = static_cast<ptrdiff_t>(t) * top_k + k;
      if (row_of[pair] < 0) continue;
      const T* from = sorted + static_cast<ptrdiff_t>(row_of[pair]) * width;
      for (int j = 0; j < width; ++j) out[j] += weight[pair] * from[j];
    }
  }
}

template <typename T>
void CombineBackwardInput(const T* dy, const T* sorted, const int32_t* row_of, const T* weight,
                          int rows, int top_k, int width, T* dsorted, T* dweight) {
  for (int t = 0; t < rows; ++t) {
    const T* d = dy + static_cast<ptrdiff_t>(t) * width;
    for (int k = 0; k < top_k; ++k) {
      const ptrdiff_t pair = static_cast<ptrdiff_t>(t) * top_k + k;
      if (row_of[pair] < 0) {
        dweight[pair] = 0;
        continue;
      }
      const ptrdiff_t row = static_cast<ptrdiff_t>(row_of[pair]) * width;
      for (int j = 0; j < width; ++j) dsorted[row + j] = weight[pair] * d[j];
      dweight[pair] = Dot(d, sorted + row, width);
    }
  }
}

#define CF_INSTANTIATE(T)                                                                         \
  template void CombineForward(const T*, const T*, const int32_t*, const T*, int, int, int, T*);  \
  template void CombineBackwardInput(const T*, const T*, const int32_t*, const T*, int, int, int, \
                                     T*, T*);
CF_INSTANTIATE(float)
CF_INSTANTIATE(double)
#undef CF_INSTANTIATE

}  // namespace contraflow
