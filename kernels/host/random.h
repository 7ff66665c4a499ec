#pragma once

#include <cstddef>
#include <cstdint>

namespace contraflow {

/// x[i] = a draw from the uniform distribution on [-limit, limit) that depends on (key, i) alone.
/// Built from integer mixing and exact float arithmetic, so equal on every machine and standard
/// library.
template <typename T>
void FillUniform(uint64_t key, float limit, size_t n, T* x);

/// A key from a key and one more number; distinct paths of numbers give unrelated keys.
uint64_t DeriveKey(uint64_t key, uint64_t number);

}  // namespace contraflow
