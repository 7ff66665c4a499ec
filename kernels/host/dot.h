#pragma once

namespace contraflow {

/// Sum of a[i] * b[i] in a fixed order: eight interleaved partial sums, added pairwise at the end.
/// The order depends on n alone, so vector and scalar code give the same bits.
template <typename T>
T Dot(const T* a, const T* b, int n) {
  T lane[8] = {};
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) lane[j] += a[i + j] * b[i + j];
  }
  for (int j = 0; i < n; ++i, ++j) lane[j] += a[i] * b[i];
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

}  // namespace contraflow
