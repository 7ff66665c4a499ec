#include "kernels/host/routing.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "kernels/host/linear.h"
#include "kernels/host/normalization.h"

namespace contraflow {

template <typename T>
void RouterForward(int rows, int experts, int top_k, bool renormalise, T* probabilities,
                   int32_t* expert, T* weight) {
  for (int r = 0; r < rows; ++r) {
    T* p = Row(probabilities, r, experts);
    int32_t* chosen = Row(expert, r, top_k);
    T* w = Row(weight, r, top_k);
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
    if (!renormalise) continue;
    const T sum = std::accumulate(w, w + top_k, T{0});
    for (int k = 0; k < top_k; ++k) w[k] /= sum;
  }
}

namespace {

/// Share of an expert in all choices, times the experts.
template <typename T>
T LoadOf(const int32_t* expert, int pairs, int experts, int e) {
  return static_cast<T>(std::count(expert, expert + pairs, e)) * static_cast<T>(experts) /
         static_cast<T>(pairs);
}

}  // namespace

template <typename T>
T RouterBalance(const T* probabilities, const int32_t* expert, int rows, int experts, int top_k) {
  T balance = 0;
  for (int e = 0; e < experts; ++e) {
    T sum = 0;
    for (int r = 0; r < rows; ++r) sum += Row(probabilities, r, experts)[e];
    balance += LoadOf<T>(expert, rows * top_k, experts, e) * sum / static_cast<T>(rows);
  }
  return balance;
}

template <typename T>
void RouterBackwardInput(const T* probabilities, const int32_t* expert, const T* dweight, int rows,
                         int experts, int top_k, bool renormalise, T balance, T* dlogits) {
  // The loads are alike in every row; they wait in the last, which is written last.
  T* const loads = Row(dlogits, rows - 1, experts);
  for (int e = 0; e < experts && balance != 0; ++e) {
    loads[e] = balance * LoadOf<T>(expert, rows * top_k, experts, e) / static_cast<T>(rows);
  }
  for (int r = 0; r < rows; ++r) {
    const T* p = Row(probabilities, r, experts);
    const int32_t* chosen = Row(expert, r, top_k);
    const T* dw = Row(dweight, r, top_k);
    T* d = Row(dlogits, r, experts);
    if (balance == 0) {
      std::fill(d, d + experts, T{0});
    } else if (d != loads) {
      std::copy_n(loads, experts, d);
    }
    T sum = 1, common = 0;  // of w = p / sum the gradient is (dw - dot(dw, w)) / sum
    if (renormalise) {
      sum = 0;
      for (int k = 0; k < top_k; ++k) sum += p[chosen[k]];
      for (int k = 0; k < top_k; ++k) common += dw[k] * p[chosen[k]] / sum;
    }
    for (int k = 0; k < top_k; ++k) d[chosen[k]] += (dw[k] - common) / sum;
    SoftmaxBackwardInput(p, d, experts, d);
  }
}

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
  if (capacity == 0) {
    SortByExpert(expert, rows, experts, top_k, first, token_of, row_of);
    return 0;
  }
  // first[e + 1] counts the rows of e that are taken, until it becomes where e ends.
  std::fill(first, first + experts + 1, 0);
  std::fill(token_of, Row(token_of, experts, capacity), -1);
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
    T* to = Row(sorted, i, width);
    if (token_of[i] < 0) {
      std::fill_n(to, width, T{0});
    } else {
      std::copy_n(Row(x, token_of[i], width), width, to);
    }
  }
}

template <typename T>
void GatherTokensBackwardInput(const T* dsorted, const int32_t* row_of, int rows, int top_k,
                               int width, T* dx) {
  for (int t = 0; t < rows; ++t) {
    T* to = Row(dx, t, width);
    std::fill(to, to + width, T{0});
    for (int k = 0; k < top_k; ++k) {
      const int32_t row = row_of[static_cast<ptrdiff_t>(t) * top_k + k];
      if (row < 0) continue;
      const T* from = Row(dsorted, row, width);
      for (int j = 0; j < width; ++j) to[j] += from[j];
    }
  }
}

template <typename T>
void CombineForward(const T* residual, const T* sorted, const int32_t* row_of, const T* weight,
                    int rows, int top_k, int width, T* y) {
  for (int t = 0; t < rows; ++t) {
    T* out = Row(y, t, width);
    std::copy_n(Row(residual, t, width), width, out);
    for (int k = 0; k < top_k; ++k) {
      const ptrdiff_t pair = static_cast<ptrdiff_t>(t) * top_k + k;
      if (row_of[pair] < 0) continue;
      const T* from = Row(sorted, row_of[pair], width);
      for (int j = 0; j < width; ++j) out[j] += weight[pair] * from[j];
    }
  }
}

template <typename T>
void CombineBackwardInput(const T* dy, const T* sorted, const int32_t* row_of, const T* weight,
                          int rows, int top_k, int width, T* dsorted, T* dweight) {
  for (int t = 0; t < rows; ++t) {
    const T* d = Row(dy, t, width);
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
  template void RouterForward(int, int, int, bool, T*, int32_t*, T*);                             \
  template T RouterBalance(const T*, const int32_t*, int, int, int);                              \
  template void RouterBackwardInput(const T*, const int32_t*, const T*, int, int, int, bool, T,   \
                                    T*);                                                          \
  template void GatherTokens(const T*, const int32_t*, int, int, T*);                             \
  template void GatherTokensBackwardInput(const T*, const int32_t*, int, int, int, T*);           \
  template void CombineForward(const T*, const T*, const int32_t*, const T*, int, int, int, T*);  \
  template void CombineBackwardInput(const T*, const T*, const int32_t*, const T*, int, int, int, \
                                     T*, T*);
CF_INSTANTIATE(float)
CF_INSTANTIATE(double)
#undef CF_INSTANTIATE

}  // namespace contraflow
