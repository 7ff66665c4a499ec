#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"
#include "runtime/core/transport.h"
#include "runtime/exec/links.h"

namespace contraflow {

/// Values of a row, most rows of a member and expert, experts of a member.
inline constexpr int kWidth = 8, kCapacity = 2, kLocal = 2;

/// How many rows a member sends to an expert: kCapacity, or anything up to it.
enum class Rows : bool { kFixed, kAny };

using Bits = std::vector<uint16_t>;
/// Bytes of a device that has memory.
inline constexpr size_t kMemory = size_t{1} << 17;

/// Messages of one device, each instruction with memory of its own: its bytes say what they are.
class LinkBackend : public GpuBackend {
 public:
  /// Its messages lie in memory of `allocate`, where there is one.
  LinkBackend(const Plan& plan, Device device, Rows rows = Rows::kFixed,
              const AllocateMemory& allocate = {})
      : plan_(plan), device_(device), rows_(rows) {
    if (allocate) memory_ = allocate(kMemory);
    for (int stage = 0; stage < plan.stages; ++stage) {
      // Sizes of no common measure; experts' gradients only where there are groups.
      const auto dense = static_cast<size_t>(37 + 11 * stage);
      gradients_.push_back(Random(dense, stage));
      experts_.push_back(Random(plan.expert_parallel > 1 ? dense / 3 : 0, stage + plan.stages));
    }
  }

  std::span<std::byte> Message(const Instruction& i) override {
    const Tag tag = TagOf(i);
    for (const Moved& moved : messages_) {
      if (moved.instruction.op == i.op && TagOf(moved.instruction) == tag) {
        return std::as_writable_bytes(moved.bytes);
      }
    }
    // Neighbouring messages differ in size, so that a wrong order shows.
    const auto size = static_cast<size_t>(16 + 16 * ((tag.microbatch * 2 + tag.producer) % 7));
    const std::span<unsigned char> bytes = Take<unsigned char>(size);
    if (WorkOf(i.op) == Work::kSend) std::ranges::copy(Expected(i, size), bytes.begin());
    messages_.push_back({i, bytes});
    return std::as_writable_bytes(bytes);
  }

  ExchangePart Exchange(const Instruction& i) override {
    const int members = plan_.expert_parallel, most = members * kLocal * kCapacity;
    const auto numbers = static_cast<size_t>(most * kWidth);
    const Counts sent = SentOf(i);
    const auto [first, received] = CountsOf(i);
    const Moving& r = exchanges_.emplace_back(
        Moving{i, i.op == Op::DISPATCH_F || i.op == Op::COMBINE_B, Take<uint16_t>(numbers),
               Take<uint16_t>(numbers), Take<int32_t>(sent.size()), Take<int32_t>(first.size()),
               Take<int32_t>(received.size())});
    std::ranges::copy(sent, r.sent.begin());
    if (i.op != Op::DISPATCH_F) {
      std::ranges::copy(first, r.first.begin());
      std::ranges::copy(received, r.received.begin());
    }
    std::ranges::copy(RowsOf(i, r.to_experts), (r.to_experts ? r.tokens : r.experts).begin());
    ExchangePart part = {};
    part.peer = {r.sent.data(), reinterpret_cast<gpu::Bf16*>(r.tokens.data()), r.first.data(),
                 r.received.data(), reinterpret_cast<gpu::Bf16*>(r.experts.data())};
    part.to_experts = r.to_experts;
    if (i.op == Op::DISPATCH_F) {
      part.first = r.first.data();
      part.received = r.received.data();
    }
    part.overflow = &overflow_;
    part.local_experts = kLocal;
    part.width = kWidth;
    part.capacity = rows_ == Rows::kFixed ? kCapacity : 0;
    part.most_rows = part.sent_rows = most;
    return part;
  }

  std::span<std::byte> LinkMemory() const override { return memory_; }
  std::span<float> Gradients(int stage) override { return gradients_[static_cast<size_t>(stage)]; }
  std::span<float> ExpertGradients(int stage) override {
    return experts_[static_cast<size_t>(stage)];
  }

  /// Throws unless everything has come where it belongs.
  void CheckMoved() const {
    for (const Moved& message : messages_) {
      if (!std::ranges::equal(message.bytes, Expected(message.instruction, message.bytes.size()))) {
        throw Error(ToString(message.instruction) + " moved something else");
      }
    }
    for (const Moving& r : exchanges_) CheckRows(r);
    if (overflow_ != 0) throw Error("rows overflowed");
  }

  void Upload(int, gpu::Stream) override {}
  void BeginStep(gpu::Stream) override {}
  void Compute(const Instruction&, gpu::Stream) override {}
  void BeforeExchange(const Instruction&, gpu::Stream) override {}
  void AfterExchange(const Instruction&, gpu::Stream) override {}
  void OptimizerStep(int, gpu::Stream) override {}
  UpdateGuard GuardOfUpdates() const override { return {.limit = 0, .numbers = 1}; }
  void Download(int, gpu::Stream) override {}
  DeviceStep Results(int) override { return {}; }

 private:
  struct Moved {
    Instruction instruction;
    std::span<unsigned char> bytes;
  };
  using Counts = std::vector<int32_t>;
  struct Moving {
    Instruction instruction;
    bool to_experts;
    std::span<uint16_t> tokens, experts;
    std::span<int32_t> sent, first, received;
  };

  /// The next part of the memory, full of 0xff.
  template <typename T>
  std::span<T> Take(size_t count) {
    constexpr size_t kAlignment = 16;
    const size_t bytes = (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    CF_ASSERT(taken_ + bytes <= memory_.size());
    std::byte* const at = memory_.data() + taken_;
    taken_ += bytes;
    std::memset(at, 0xff, bytes);
    return {reinterpret_cast<T*>(at), count};
  }

  std::vector<float> Random(size_t size, int salt) const {
    std::mt19937 random(static_cast<unsigned>(salt + 100 * device_.rank + 1000 * device_.member +
                                              10000 * device_.replica));
    std::vector<float> values(size);
    for (float& value : values) {
      value = std::uniform_real_distribution<float>(-1, 1)(random) *
              static_cast<float>(1 << random() % 20);
    }
    return values;
  }
  std::vector<unsigned char> Expected(const Instruction& i, size_t size) const {
    const Tag tag = TagOf(i);
    std::vector<unsigned char> bytes(size);
    for (size_t at = 0; at < size; ++at) {
      bytes[at] = static_cast<unsigned char>(
          at + static_cast<size_t>(tag.forward ? 101 : 57) +
          static_cast<size_t>(tag.microbatch * 13) + static_cast<size_t>(tag.producer * 31) +
          static_cast<size_t>(device_.replica * 7) + static_cast<size_t>(device_.member * 3));
    }
    return bytes;
  }
  /// Number of rows of a member's tokens for an expert of an owner; the same in all exchanges of a
  /// layer and micro-batch.
  int CountOf(const Instruction& i, int member, int owner, int expert) const {
    if (rows_ == Rows::kFixed) return kCapacity;
    unsigned seed = 0;
    for (const int part : {i.stage + 0, i.layer + 0, i.microbatch + 0, device_.rank,
                           device_.replica, member, owner, expert}) {
      seed = seed * 67 + static_cast<unsigned>(part);
    }
    return static_cast<int>(std::mt19937(seed)() % (kCapacity + 1));
  }
  /// Code that fills one of those rows.
  uint16_t Code(const Instruction& i, int member, int owner, int expert, int row) const {
    return static_cast<uint16_t>(static_cast<int>(i.op) * 4001 + i.microbatch * 401 +
                                 i.stage * 211 + i.layer * 97 + device_.replica * 53 + member * 17 +
                                 owner * 5 + expert + row * 1009);
  }
  Counts SentOf(const Instruction& i) const {
    Counts sent = {0};
    for (int m = 0; m < plan_.expert_parallel; ++m) {
      for (int e = 0; e < kLocal; ++e) {
        sent.push_back(sent.back() + CountOf(i, device_.member, m, e));
      }
    }
    return sent;
  }
  /// First and received.
  std::pair<Counts, Counts> CountsOf(const Instruction& i) const {
    Counts first = {0}, received;
    for (int m = 0; m < plan_.expert_parallel; ++m) {
      for (int e = 0; e < kLocal; ++e) received.push_back(CountOf(i, m, device_.member, e));
    }
    for (int e = 0; e < kLocal; ++e) {
      int rows = first.back();
      for (int m = 0; m < plan_.expert_parallel; ++m) {
        rows += received[static_cast<size_t>(m * kLocal + e)];
      }
      first.push_back(rows);
    }
    return {first, received};
  }
  /// The rows at this device's tokens: by owner and expert; at its experts: by expert, then member.
  Bits RowsOf(const Instruction& i, bool at_tokens) const {
    const int members = plan_.expert_parallel;
    Bits bits;
    for (int part = 0; part < members * kLocal; ++part) {
      const int member = at_tokens ? device_.member : part % members,
                owner = at_tokens ? part / kLocal : device_.member,
                expert = at_tokens ? part % kLocal : part / members;
      for (int row = 0; row < CountOf(i, member, owner, expert); ++row) {
        bits.insert(bits.end(), kWidth, Code(i, member, owner, expert, row));
      }
    }
    bits.resize(static_cast<size_t>(members * kLocal * kCapacity * kWidth), 0xffff);
    return bits;
  }
  void CheckRows(const Moving& r) const {
    if (!std::ranges::equal(RowsOf(r.instruction, !r.to_experts),
                            r.to_experts ? r.experts : r.tokens)) {
      throw Error(ToString(r.instruction) + " brought other rows");
    }
    const auto [first, received] = CountsOf(r.instruction);
    if (!std::ranges::equal(r.first, first) || !std::ranges::equal(r.received, received)) {
      throw Error(ToString(r.instruction) + " has other counts");
    }
  }

  const Plan& plan_;
  const Device device_;
  const Rows rows_;
  std::vector<std::vector<float>> gradients_, experts_;
  std::span<std::byte> memory_;
  size_t taken_ = 0;
  std::vector<Moved> messages_;
  std::vector<Moving> exchanges_;
  int32_t overflow_ = 0;
};

}  // namespace contraflow
