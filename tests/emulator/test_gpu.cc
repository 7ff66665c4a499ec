#include "tests/emulator/test_gpu.h"

#include <cmath>
#include <limits>

#include "kernels/host/random.h"

namespace contraflow {

std::vector<float> RandomFloats(size_t size, unsigned seed, double limit) {
  std::vector<float> values(size);
  FillUniform(DeriveKey(seed, 7), static_cast<float>(limit), size, values.data());
  return values;
}

std::vector<gpu::Bf16> RandomBf16(size_t size, unsigned seed, double limit) {
  std::vector<gpu::Bf16> values;
  for (const float value : RandomFloats(size, seed, limit)) values.push_back(gpu::ToBf16(value));
  return values;
}

std::vector<double> Doubles(const std::vector<gpu::Bf16>& values) {
  std::vector<double> doubles;
  for (const gpu::Bf16 value : values) doubles.push_back(static_cast<double>(gpu::ToFloat(value)));
  return doubles;
}

std::vector<double> Doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

double RelativeError(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) {
      return std::numeric_limits<double>::infinity();
    }
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  if (difference == 0) return 0;
  return std::sqrt(difference / size);
}

}  // namespace contraflow
