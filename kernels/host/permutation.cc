#include "kernels/host/permutation.h"

#include <algorithm>
#include <cstddef>

namespace contraflow {

// Counting sort. `first` serves as the insertion points meanwhile: after the second pass first[e]
// is the end of expert e, so it is shifted by one at the end.
void SortByExpert(const int32_t* expert, int rows, int experts, int top_k, int32_t* first,
                  int32_t* token_of, int32_t* row_of) {
  const int pairs = rows * top_k;
  std::fill(first, first + experts + 1, 0);
  for (int i = 0; i < pairs; ++i) ++first[expert[i] + 1];
  for (int e = 0; e < experts; ++e) first[e + 1] += first[e];
  for (int i = 0; i < pairs; ++i) {
    const int32_t row = first[expert[i]]++;
    token_of[row] = i / top_k;
    row_of[i] = row;
  }
  for (int e = experts; e > 0; --e) first[e] = first[e - 1];
  first[0] = 0;
}

int SortIntoCapacity(const int32_t* expert, int rows, int experts, int top_k, int capacity,
                     int32_t* first, int32_t* token_of, int32_t* row_of) {
  // first[e + 1] counts the rows of e that are taken, until it becomes where e ends.
  std::fill(first, first + experts + 1, 0);
  std::fill(token_of, token_of + static_cast<ptrdiff_t>(experts) * capacity, -1);
  int without = 0;
  for (int i = 0; i < rows * top_k; ++i) {
    int32_t& taken = first[expert[i] + 1];
    if (taken == capacity) {
      row_of[i] = -1;
      ++without;
      continue;
    }
    row_of[i] = expert[i] * capacity + taken++;
    token_of[row_of[i]] = i / top_k;
  }
  for (int e = 0; e <= experts; ++e) first[e] = e * capacity;
  return without;
}

template <typename T>
void GatherTokens(const T* x, const int32_t* token_of, int sorted_rows, int width, T* sorted) {
  for (int i = 0; i < sorted_rows; ++i) {
    T* to = sorted + static_cast<ptrdiff_t>(i) * width;
    if (token_of[i] < 0) {
      std::fill_n(to, width, T{0});
    } else {
      std::copy_n(x + static_cast<ptrdiff_t>(token_of[i]) * width, width, to);
    }
  }
}

template <typename T>
void GatherTokensBackwardInput(const T* dsorted, const int32_t* row_of, int rows, int top_k,
                               int width, T* dx) {
  for (int t = 0; t < rows; ++t) {
    T* to = dx + static_cast<ptrdiff_t>(t) * width;
    std::fill(to, to + width, T{0});
    for (int k = 0; k < top_k; ++k) {
      const int32_t row = row_of[static_cast<ptrdiff_t>(t) * top_k + k];
      if (row < 0) continue;
      const T* from = dsorted + static_cast<ptrdiff_t>(row) * width;
      for (int j = 0; j < width; ++j) to[j] += from[j];
    }
  }
}

#define CF_INSTANTIATE(T)                                             \
  template void GatherTokens(const T*, const int32_t*, int, int, T*); \
  template void GatherTokensBackwardInput(const T*, const int32_t*, int, int, int, T*);
CF_INSTANTIATE(float)
CF_INSTANTIATE(double)
#undef CF_INSTANTIATE

}  // namespace contraflow
