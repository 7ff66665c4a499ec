#pragma once

#include <cstddef>
#include <vector>

namespace contraflow {

/// One T for every cell: a stage and a micro-batch.
template <typename T>
class Grid {
 public:
  using Reference = typename std::vector<T>::reference;
  using ConstReference = typename std::vector<T>::const_reference;

  Grid() = default;
  Grid(int stages, int microbatches, const T& initial = T())
      : microbatches_(static_cast<size_t>(microbatches)),
        cells_(static_cast<size_t>(stages) * microbatches_, initial) {}

  bool empty() const { return cells_.empty(); }
  Reference operator()(int stage, int microbatch) { return cells_[At(stage, microbatch)]; }
  ConstReference operator()(int stage, int microbatch) const {
    return cells_[At(stage, microbatch)];
  }

  /// All cells, stage by stage.
  auto begin() { return cells_.begin(); }
  auto end() { return cells_.end(); }
  auto begin() const { return cells_.begin(); }
  auto end() const { return cells_.end(); }

 private:
  size_t At(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * microbatches_ + static_cast<size_t>(microbatch);
  }

  size_t microbatches_ = 0;
  std::vector<T> cells_;
};

}  // namespace contraflow
