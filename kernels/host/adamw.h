#pragma once

#include <cstddef>

namespace contraflow {

/// Settings of one AdamW step.
struct AdamW {
  double learning_rate, beta1, beta2, epsilon, weight_decay;
};

/// AdamW with decoupled weight decay on n parameters; m and v are its moments, zero before step 1.
template <typename T>
void AdamWStep(const AdamW& settings, int step, size_t n, const T* gradient, T* m, T* v,
               T* parameter);

/// In double, and always in the same order: eight sums side by side, then from the first to the
/// last.
template <typename T>
double SumOfSquares(size_t n, const T* values);

}  // namespace contraflow
