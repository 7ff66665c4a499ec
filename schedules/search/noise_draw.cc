#include "schedules/search/noise_draw.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "schedules/search/evaluator.h"

namespace contraflow {
namespace {

/// 1 as a fixed-point number.
constexpr int64_t kOne = 65536;
/// sqrt(3): four even draws from [-1/2, 1/2) have the variance 1/3 together.
constexpr int64_t kRoot3 = 113512;

/// Close to normal with mean 0 and variance 1, in 65536ths.
int64_t DrawNormal(std::mt19937_64* random) {
  const uint64_t bits = (*random)();
  int64_t sum = -2 * kOne;
  for (int part = 0; part < 4; ++part) sum += static_cast<int64_t>(bits >> (16 * part) & 0xffff);
  return sum * kRoot3 / kOne;
}

}  // namespace

NoiseDraw::NoiseDraw(const SearchProblem& problem, double sigma, uint64_t seed)
    : problem_(problem) {
  const int64_t deviation = std::llround(sigma * static_cast<double>(kOne));
  std::mt19937_64 random(seed);
  factors_.resize(3 * static_cast<size_t>(problem.chunks()));
  for (int32_t& factor : factors_) {
    // No time is negative, however large the deviation.
    const int64_t drawn = kOne + deviation * DrawNormal(&random) / kOne;
    factor = static_cast<int32_t>(std::max(drawn, kOne / 16));
  }
}

Time NoiseDraw::Duration(const Action& action, int k, int j) const {
  const size_t part = HasForward(action.op) ? 0 : HasBackward(action.op) ? 1 : 2;
  const int64_t factor = factors_[3 * problem_.Chunk(action.stage, k) + part];
  const Time time = problem_.Duration(action, k, j);
  return time / kOne * factor + time % kOne * factor / kOne;
}

Time ExpectedMakespan(const SearchProblem& problem, const Order& order, double sigma, uint64_t seed,
                      int draws) {
  Evaluator evaluator(problem);
  Time sum = 0;
  for (int i = 0; i < draws; ++i) {
    const NoiseDraw draw(problem, sigma, seed + static_cast<uint64_t>(i));
    sum += evaluator.Run(order, &draw).makespan / draws;
  }
  return sum;
}

}  // namespace contraflow
