#include "kernels/host/cross_entropy.h"

#include <cstddef>

#include "kernels/host/softmax.h"

namespace contraflow {

template <typename T>
T CrossEntropyForward(const int32_t* targets, int rows, int classes, T* probabilities) {
  double sum = 0;
  for (int r = 0; r < rows; ++r) {
    T* row = probabilities + static_cast<ptrdiff_t>(r) * classes;
    // From the logit: the logarithm of a probability that underflowed would be infinite.
    const T logit = row[targets[r]];
    sum += static_cast<double>(Softmax(row, classes) - logit);
  }
  return static_cast<T>(sum / rows);
}

template <typename T>
void CrossEntropyBackwardInput(const int32_t* targets, T scale, int rows, int classes,
                               T* probabilities) {
  const T each = scale / static_cast<T>(rows);
  for (int r = 0; r < rows; ++r) {
    T* row = probabilities + static_cast<ptrdiff_t>(r) * classes;
    row[targets[r]] -= T{1};
    for (int c = 0; c < classes; ++c) row[c] *= each;
  }
}

#define CF_INSTANTIATE(T)                                       \
  template T CrossEntropyForward(const int32_t*, int, int, T*); \
  template void CrossEntropyBackwardInput(const int32_t*, T, int, int, T*);
CF_INSTANTIATE(float)
CF_INSTANTIATE(double)
#undef CF_INSTANTIATE

}  // namespace contraflow
