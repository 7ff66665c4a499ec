#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace contraflow {

/// Random numbers that depend on the seed alone.
class Draws {
 public:
  using result_type = unsigned;
  explicit Draws(unsigned seed) : engine_(seed) {}
  static constexpr unsigned min() { return 0; }
  static constexpr unsigned max() { return ~0u; }
  unsigned operator()() { return static_cast<unsigned>(engine_()); }
  /// 0 .. limit - 1.
  int Below(int limit) { return static_cast<int>((*this)() % static_cast<unsigned>(limit)); }

 private:
  std::mt19937 engine_;
};

/// Tokens that choose experts.
struct Routing {
  int rows, experts, top_k;
  std::vector<int32_t> expert;  ///< [rows x top_k] all of a token's are different
};

/// The choices of `rows` tokens: of all experts, of few of them, or for the first always the same.
Routing RandomRouting(int rows, int experts, int top_k, Draws* random);
/// Sizes as well: with a single token, expert or choice now and then, and with as many choices as
/// experts.
Routing RandomRouting(int most_rows, int most_experts, Draws* random);
std::string ToString(const Routing& routing);

/// The pairs of a routing sorted by expert, and how many found no row.
struct Sorted {
  std::vector<int32_t> first, token_of, row_of;
  int dropped = 0;

  bool operator==(const Sorted&) const = default;
};

/// Order by kernels/host/routing.h; capacity 0: every pair has a row.
Sorted SortOnHost(const Routing& routing, int capacity);

}  // namespace contraflow
