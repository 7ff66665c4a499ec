// Any bytes are a spec: a schedule, its sizes and, as text, what else is asked for. Compile makes a
// plan that Verify accepts, or throws Error.

#include "compiler/plan/spec.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "compiler/plan/error.h"
#include "compiler/verify/verify.h"
#include "schedules/compile.h"
#include "schedules/registry.h"

namespace contraflow {
namespace {

/// Numbers first, zeros behind their end, and words up to a newline.
class Bytes {
 public:
  explicit Bytes(std::string_view bytes) : rest_(bytes) {}
  template <typename T>
  T Number() {
    T number{};
    const size_t size = std::min(sizeof number, rest_.size());
    if (size > 0) std::memcpy(&number, rest_.data(), size);
    rest_.remove_prefix(size);
    return number;
  }
  std::string Word() {
    const size_t end = std::min(rest_.find('\n'), rest_.size());
    std::string word(rest_.substr(0, end));
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return word;
  }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

/// Small, or whatever the four bytes say.
int Size(Bytes* bytes) {
  const auto small = bytes->Number<uint8_t>();
  return small < 255 ? small % 32 : bytes->Number<int32_t>();
}

CostModel Costs(Bytes* bytes) {
  const auto time = [&] { return Time{bytes->Number<uint8_t>()}; };
  const Time f = time(), b = time(), w = time(), comm = time();
  CostModel costs = UniformCosts(f, b, w, comm);
  if (bytes->Number<uint8_t>() % 2 == 0) return costs;
  costs.memory.emplace();
  costs.memory->activation_bytes = {bytes->Number<uint8_t>()};
  return costs;
}

void Check(Bytes bytes) {
  const auto schedules = Schedules();
  Spec spec;
  spec.schedule = schedules[bytes.Number<uint8_t>() % schedules.size()]->name;
  spec.ranks = Size(&bytes);
  spec.microbatches = Size(&bytes);
  spec.chunks = Size(&bytes);
  spec.data_parallel = Size(&bytes);
  spec.costs = Costs(&bytes);
  spec.search.budget = 1'000'000;
  const auto level = static_cast<Level>(bytes.Number<uint8_t>() % 4);
  const std::string limit = bytes.Word(), recompute = bytes.Word(), offload = bytes.Word(),
                    partition = bytes.Word(), placement = bytes.Word();
  if (!recompute.empty()) spec.recompute = ParseRecompute(recompute);
  if (!offload.empty()) spec.offload = ParseOffload(offload);
  if (!partition.empty()) spec.partition = ParsePartition(partition);
  if (!placement.empty()) spec.search.placement = ParsePlacement(placement);
  if (!limit.empty()) spec.memory_limit = MemoryLimitOf(spec, limit);
  CheckSpec(spec);
  // What is large takes long, and is no more likely to be wrong.
  if (int64_t{spec.ranks} * std::max(1, spec.chunks) * spec.microbatches > 1 << 11) return;
  CF_ASSERT(Verify(Compile(spec, {.level = level})).empty());
}

}  // namespace
}  // namespace contraflow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    contraflow::Check(contraflow::Bytes({reinterpret_cast<const char*>(data), size}));
  } catch (const contraflow::Error&) {
  }
  return 0;
}
