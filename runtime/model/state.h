#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace contraflow {

/// One block of parameters with its optimizer state: three arrays of one size. Its name is unique
/// in the model and does not depend on any partition ("layer 3 expert 5 gate_up").
struct StateBlock {
  std::string name;
  std::span<float> parameters, m, v;
};

/// Brings a state out of the memory of devices, which go on meanwhile. All calls are made by the
/// thread that makes the steps.
class StateCopies {
 public:
  virtual ~StateCopies() = default;

  /// 4096-aligned memory of the host that the devices can copy to; it lives as long as somebody has
  /// it, with this or without.
  virtual std::shared_ptr<std::byte> NewMemory(size_t bytes) = 0;
  struct Part {
    std::span<const float> values;  ///< in the memory of a device
    std::byte* to;
  };
  /// Begins to copy the values as they are after the last step; the next one changes none before
  /// they are copied. When all are, `then` is called once, in a step, Poll or Await. Work begun
  /// before has ended.
  virtual void Begin(std::span<const Part> parts, std::function<void()> then) = 0;
  /// Whether nothing is being copied; never waits.
  virtual bool Poll() = 0;
  virtual void Await() = 0;
  /// `then` will not be called any more.
  virtual void Forget() noexcept = 0;
};

}  // namespace contraflow
