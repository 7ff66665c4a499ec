#include "kernels/host/router.h"

#include <algorithm>
#include <cstddef>

#include "kernels/host/softmax.h"

namespace contraflow {

template <typename T>
void RouterForward(int rows, int experts, int top_k, T* probabilities, int32_t* expert, T* weight) {
  for (int r = 0; r < rows; ++r) {
    T* p = probabilities + static_cast<ptrdiff_t>(r) * experts;
    int32_t* chosen = expert + static_cast<ptrdiff_t>(r) * top_k;
    T* w = weight + static_cast<ptrdiff_t>(r) * top_k;
    Softmax(p, experts);
    for (int k = 0; k < top_k; ++k) {
      int best = -1;
      for (int e = 0; e < experts; ++e) {
        const bool taken = std::find(chosen, chosen + k, e) != chosen + k;
        // Strictly greater: of equal probabilities the lower index stays.
        if (!taken && (best < 0 || p[e] > p[best])) best = e;
      }
      chosen[k] = best;
      w[k] = p[best];
    }
  }
}

template <typename T>
void RouterBackwardInput(const T* probabilities, const int32_t* expert, const T* dweight, int rows,
                         int experts, int top_k, T* dlogits) {
  for (int r = 0; r < rows; ++r) {
    T* d = dlogits + static_cast<ptrdiff_t>(r) * experts;
    std::fill(d, d + experts, T{0});
    for (int k = 0; k < top_k; ++k) {
      const ptrdiff_t at = static_cast<ptrdiff_t>(r) * top_k + k;
      d[expert[at]] = dweight[at];
    }
    SoftmaxBackwardInput(probabilities + static_cast<ptrdiff_t>(r) * experts, d, experts, d);
  }
}

#define CF_INSTANTIATE(T)                                       \
  template void RouterForward(int, int, int, T*, int32_t*, T*); \
  template void RouterBackwardInput(const T*, const int32_t*, const T*, int, int, int, T*);
CF_INSTANTIATE(float)
CF_INSTANTIATE(double)
#undef CF_INSTANTIATE

}  // namespace contraflow
