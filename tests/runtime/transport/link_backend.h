#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"
#include "runtime/core/transport.h"
#include "runtime/gpu/links.h"

namespace contraflow {

/// Values of a row, rows of a member and expert, experts of a member, values of a part.
inline constexpr int kWidth = 8, kCapacity = 2, kLocal = 2;
inline constexpr size_t kPieceSize = size_t{kWidth} * kCapacity;

using Bits = std::vector<uint16_t>;

/// What one device moves, each instruction with memory of its own: its bytes say what they are.
class LinkBackend : public GpuBackend {
 public:
  LinkBackend(const Plan& plan, Device device) : plan_(plan), device_(device) {
    for (int stage = 0; stage < plan.stages; ++stage) {
      // Sizes of no common measure; experts' gradients only where there are groups.
      const auto dense = static_cast<size_t>(37 + 11 * stage);
      gradients_.push_back(Random(dense, stage));
      experts_.push_back(Random(plan.expert_parallel > 1 ? dense / 3 : 0, stage + plan.stages));
    }
  }

  std::span<std::byte> Message(const Instruction& i) override {
    const Tag tag = TagOf(i);
    // Neighbouring messages differ in size, so that a wrong order shows.
    auto& memory = messages_.emplace_back();
    memory.instruction = i;
    memory.bytes.resize(static_cast<size_t>(16 + 16 * ((tag.microbatch * 2 + tag.producer) % 7)));
    if (WorkOf(i.op) == Work::kSend) memory.bytes = Expected(i, memory.bytes.size());
    return std::as_writable_bytes(std::span(memory.bytes));
  }

  ExchangePart Exchange(const Instruction& i) override {
    const auto rows = static_cast<size_t>(plan_.expert_parallel) * kLocal * kPieceSize;
    const auto counts = static_cast<size_t>(plan_.expert_parallel) * kLocal;
    Rows& r = *exchanges_.emplace_back(std::make_unique<Rows>());
    r.instruction = i;
    r.to_experts = i.op == Op::DISPATCH_F || i.op == Op::COMBINE_B;
    r.tokens.assign(rows, 0xffff);
    r.experts.assign(rows, 0xffff);
    r.first.assign(kLocal + 1, -1);
    r.received.assign(counts, -1);
    r.sent.resize(counts + 1);
    for (size_t e = 0; e <= counts; ++e) r.sent[e] = static_cast<int32_t>(e) * kCapacity;
    if (i.op != Op::DISPATCH_F) SetCounts(&r);
    for (int m = 0; m < plan_.expert_parallel; ++m) {
      for (int e = 0; e < kLocal; ++e) {
        r.to_experts
            ? Fill(&r.tokens, m * kLocal + e, Code(i, device_.member, m, e))
            : Fill(&r.experts, e * plan_.expert_parallel + m, Code(i, m, device_.member, e));
      }
    }
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
    part.capacity = kCapacity;
    part.most_rows = part.sent_rows = kCapacity * kLocal * plan_.expert_parallel;
    return part;
  }

  std::span<float> Gradients(int stage) override { return gradients_[static_cast<size_t>(stage)]; }
  std::span<float> ExpertGradients(int stage) override {
    return experts_[static_cast<size_t>(stage)];
  }

  /// Throws unless everything has come where it belongs.
  void CheckMoved() const {
    for (const Moved& message : messages_) {
      if (message.bytes != Expected(message.instruction, message.bytes.size())) {
        throw Error(ToString(message.instruction) + " moved something else");
      }
    }
    for (const auto& r : exchanges_) CheckRows(*r);
    if (overflow_ != 0) throw Error("rows overflowed");
  }

  void Upload(int, gpu::Stream) override {}
  void BeginStep(gpu::Stream) override {}
  void Compute(const Instruction&, gpu::Stream) override {}
  void BeforeExchange(const Instruction&, gpu::Stream) override {}
  void AfterExchange(const Instruction&, gpu::Stream) override {}
  void OptimizerStep(int, gpu::Stream) override {}
  void Download(gpu::Stream) override {}
  DeviceStep Results() override { return {}; }

 private:
  struct Moved {
    Instruction instruction;
    std::vector<unsigned char> bytes;
  };
  struct Rows {
    Instruction instruction;
    bool to_experts;
    Bits tokens, experts;
    std::vector<int32_t> sent, first, received;
  };

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
  /// Of the rows of a member's tokens for an expert of an owner.
  uint16_t Code(const Instruction& i, int member, int owner, int expert) const {
    return static_cast<uint16_t>(static_cast<int>(i.op) * 4001 + i.microbatch * 401 +
                                 i.stage * 211 + i.layer * 97 + device_.replica * 53 + member * 17 +
                                 owner * 5 + expert);
  }
  static void Fill(Bits* bits, int part, uint16_t code) {
    std::fill_n(bits->begin() + static_cast<ptrdiff_t>(kPieceSize) * part, kPieceSize, code);
  }
  void CheckRows(const Rows& r) const {
    Bits wanted(r.tokens.size());
    for (int m = 0; m < plan_.expert_parallel; ++m) {
      for (int e = 0; e < kLocal; ++e) {
        r.to_experts ? Fill(&wanted, e * plan_.expert_parallel + m,
                            Code(r.instruction, m, device_.member, e))
                     : Fill(&wanted, m * kLocal + e, Code(r.instruction, device_.member, m, e));
      }
    }
    if (wanted != (r.to_experts ? r.experts : r.tokens)) {
      throw Error(ToString(r.instruction) + " brought other rows");
    }
    Rows counts = r;
    SetCounts(&counts);
    if (r.first != counts.first || r.received != counts.received) {
      throw Error(ToString(r.instruction) + " has other counts");
    }
  }
  void SetCounts(Rows* r) const {
    for (size_t e = 0; e < r->first.size(); ++e) {
      r->first[e] = static_cast<int32_t>(e) * plan_.expert_parallel * kCapacity;
    }
    std::fill(r->received.begin(), r->received.end(), kCapacity);
  }

  const Plan& plan_;
  const Device device_;
  std::vector<std::vector<float>> gradients_, experts_;
  std::list<Moved> messages_;
  std::vector<std::unique_ptr<Rows>> exchanges_;
  int32_t overflow_ = 0;
};

}  // namespace contraflow
