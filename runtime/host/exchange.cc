#include "runtime/host/exchange.h"

#include <algorithm>

namespace contraflow {

Exchange::Exchange(const LayerShape& shape, Transport& transport)
    : shape_(shape),
      transport_(transport),
      of_tokens_(static_cast<size_t>(shape.members)),
      of_experts_(static_cast<size_t>(shape.members)),
      counts_(static_cast<size_t>(shape.experts)),
      send_(static_cast<size_t>(shape.members)),
      receive_(static_cast<size_t>(shape.members)) {}

void Exchange::Dispatch(const Instruction& i, const LayerViews<float>& v) {
  Count(i, v);
  ToExperts(i, v, v.dispatched, v.rows);
}

void Exchange::Combine(const Instruction& i, const LayerViews<float>& v) {
  ToTokens(i, v, v.expert_out, v.combined);
}

void Exchange::CombineBackward(const Instruction& i, const LayerViews<float>& v) {
  ToExperts(i, v, v.dcombined, v.drows);
}

void Exchange::DispatchBackward(const Instruction& i, const LayerViews<float>& v) {
  ToTokens(i, v, v.dsorted, v.ddispatched);
}

void Exchange::Count(const Instruction& i, const LayerViews<float>& v) {
  const auto members = static_cast<size_t>(shape_.members);
  const auto local = static_cast<size_t>(shape_.local_experts);
  if (shape_.capacity > 0) {
    std::fill_n(v.received, members * local, shape_.capacity);
  } else {
    for (size_t e = 0; e < counts_.size(); ++e) counts_[e] = v.sent[e + 1] - v.sent[e];
    for (size_t m = 0; m < members; ++m) {
      send_[m] = std::as_bytes(std::span(counts_).subspan(m * local, local));
      receive_[m] = std::as_writable_bytes(std::span(v.received + m * local, local));
    }
    Swap(i);
  }
  v.first[0] = 0;
  for (size_t e = 0; e < local; ++e) {
    v.first[e + 1] = v.first[e];
    for (size_t m = 0; m < members; ++m) v.first[e + 1] += v.received[m * local + e];
  }
}

void Exchange::Swap(const Instruction& i) {
  if (shape_.members > 1) return transport_.AllToAll(i, send_, receive_);
  std::copy(send_[0].begin(), send_[0].end(), receive_[0].begin());
}

/// The parts for the expert `local` of every member.
void Exchange::FindParts(const LayerViews<float>& v, int local, float* tokens, float* experts) {
  const auto width = static_cast<size_t>(shape_.width);
  const auto owned = static_cast<size_t>(shape_.local_experts), l = static_cast<size_t>(local);
  auto row = static_cast<size_t>(v.first[l]);
  for (size_t m = 0; m < of_tokens_.size(); ++m) {
    const size_t expert = m * owned + l;
    const auto begin = static_cast<size_t>(v.sent[expert]);
    const auto end = static_cast<size_t>(v.sent[expert + 1]);
    of_tokens_[m] = std::span(tokens + begin * width, (end - begin) * width);
    const auto count = static_cast<size_t>(v.received[expert]);
    of_experts_[m] = std::span(experts + row * width, count * width);
    row += count;
  }
}

void Exchange::ToExperts(const Instruction& i, const LayerViews<float>& v, float* tokens,
                         float* experts) {
  for (int local = 0; local < shape_.local_experts; ++local) {
    FindParts(v, local, tokens, experts);
    std::transform(of_tokens_.begin(), of_tokens_.end(), send_.begin(),
                   [](std::span<float> part) { return std::as_bytes(part); });
    std::transform(of_experts_.begin(), of_experts_.end(), receive_.begin(),
                   [](std::span<float> part) { return std::as_writable_bytes(part); });
    Swap(i);
  }
}

void Exchange::ToTokens(const Instruction& i, const LayerViews<float>& v, float* experts,
                        float* tokens) {
  for (int local = 0; local < shape_.local_experts; ++local) {
    FindParts(v, local, tokens, experts);
    std::transform(of_experts_.begin(), of_experts_.end(), send_.begin(),
                   [](std::span<float> part) { return std::as_bytes(part); });
    std::transform(of_tokens_.begin(), of_tokens_.end(), receive_.begin(),
                   [](std::span<float> part) { return std::as_writable_bytes(part); });
    Swap(i);
  }
}

}  // namespace contraflow
