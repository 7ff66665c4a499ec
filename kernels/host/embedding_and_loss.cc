#include "kernels/host/embedding_and_loss.h"

#include <algorithm>
#include <cstddef>

#include "kernels/host/linear.h"
#include "kernels/host/normalization.h"

namespace contraflow {

template <typename T>
void EmbeddingForward(const int32_t* tokens, const T* table, int rows, int width, T* y) {
  for (int t = 0; t < rows; ++t) {
    std::copy_n(Row(table, tokens[t], width), width, Row(y, t, width));
  }
}

template <typename T>
void EmbeddingBackwardWeight(const int32_t* tokens, const T* dy, int rows, int width, T* dtable) {
  for (int t = 0; t < rows; ++t) {
    const T* from = Row(dy, t, width);
    T* to = Row(dtable, tokens[t], width);
    for (int j = 0; j < width; ++j) to[j] += from[j];
  }
}

template <typename T>
T CrossEntropyForward(const int32_t* targets, int rows, int classes, T* probabilities) {
  double sum = 0;
  for (int r = 0; r < rows; ++r) {
    T* row = Row(probabilities, r, classes);
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
    T* row = Row(probabilities, r, classes);
    row[targets[r]] -= T{1};
    for (int c = 0; c < classes; ++c) row[c] *= each;
  }
}

#define CF_INSTANTIATE(T)                                                        \
  template void EmbeddingForward(const int32_t*, const T*, int, int, T*);        \
  template void EmbeddingBackwardWeight(const int32_t*, const T*, int, int, T*); \
  template T CrossEntropyForward(const int32_t*, int, int, T*);                  \
  template void CrossEntropyBackwardInput(const int32_t*, T, int, int, T*);
CF_INSTANTIATE(float)
CF_INSTANTIATE(double)
#undef CF_INSTANTIATE

}  // namespace contraflow
