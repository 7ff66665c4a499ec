// The way of a token to its experts and back, kernel after kernel on all members of a group,
// against the same way on the host. An expert multiplies its rows by a power of two of its own, so
// that a row of the wrong expert shows and nothing is rounded.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>

#include "kernels/gpu/exchange.h"
#include "kernels/gpu/routing.h"
#include "kernels/host/routing.h"
#include "tests/emulator/test_gpu.h"
#include "tests/kernels/host_exchange.h"
#include "tests/kernels/routing.h"

namespace contraflow::expert_group_test {
namespace {

using gpu::Bf16;

struct Sizes {
  ExchangeShape exchange;
  int rows, top_k;

  int sent_rows() const {
    return exchange.capacity > 0 ? exchange.experts() * exchange.capacity : rows * top_k;
  }
  int most_rows() const { return sent_rows() * exchange.members; }
  size_t pairs() const { return static_cast<size_t>(rows * top_k); }
  size_t scores() const { return static_cast<size_t>(rows * exchange.experts()); }
  size_t values(int of_rows) const { return static_cast<size_t>(of_rows * exchange.width); }
};

Sizes RandomSizes(Draws* random) {
  Sizes s{};
  s.exchange.members = 1 << random->Below(3);
  s.exchange.local_experts = 1 + random->Below(5) + (s.exchange.members == 1 ? 1 : 0);
  s.exchange.width = random->Below(2) == 0 ? 1 + random->Below(70) : 8 * (1 + random->Below(40));
  s.exchange.capacity = random->Below(2) == 0 ? 0 : 1 + random->Below(8);
  s.rows = 1 + random->Below(SmallShapes() ? 20 : 1000);
  s.top_k = 1 + random->Below(std::min(s.exchange.experts(), 4));
  return s;
}

std::string ToString(const Sizes& s) {
  return std::to_string(s.rows) + " tokens of " + std::to_string(s.exchange.width) + " choose " +
         std::to_string(s.top_k) + " of " + std::to_string(s.exchange.members) + " x " +
         std::to_string(s.exchange.local_experts) + " experts, capacity " +
         std::to_string(s.exchange.capacity);
}

/// Inputs, and the host's results.
struct Host {
  std::vector<float> logits, x, residual, dy;
  std::vector<float> probabilities, weight, y, dweight, dx, dlogits;
  std::vector<int32_t> expert, token_of, row_of;
};

std::vector<float> RandomValues(size_t size, Draws* random) {
  std::vector<float> values;
  for (const Bf16 value : RandomBf16(size, (*random)())) values.push_back(gpu::ToFloat(value));
  return values;
}

std::vector<Bf16> Rounded(const std::vector<float>& values) {
  std::vector<Bf16> rounded;
  for (const float value : values) rounded.push_back(gpu::ToBf16(value));
  return rounded;
}

/// Multiples of 1/8, so that rounding changes no choice.
Host RandomHost(const Sizes& s, Draws* random) {
  Host h;
  for (size_t i = 0; i < s.scores(); ++i) {
    h.logits.push_back(static_cast<float>(random->Below(40)) / 8);
  }
  h.x = RandomValues(s.values(s.rows), random);
  h.residual = RandomValues(s.values(s.rows), random);
  h.dy = RandomValues(s.values(s.rows), random);
  return h;
}

template <typename T>
T Scaled(T value, int expert) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return gpu::ToBf16(Scaled(gpu::ToFloat(value), expert));
  } else {
    return std::ldexp(value, expert % 5 - 2);
  }
}

/// Runs the experts of a member.
template <typename T>
void RunExperts(const ExchangeShape& shape, int member, const std::vector<int32_t>& first,
                std::vector<T>* rows) {
  for (int local = 0; local < shape.local_experts; ++local) {
    const auto l = static_cast<size_t>(local);
    for (int i = first[l] * shape.width; i < first[l + 1] * shape.width; ++i) {
      T& value = (*rows)[static_cast<size_t>(i)];
      value = Scaled(value, member * shape.local_experts + local);
    }
  }
}

void HostForward(const Sizes& s, std::vector<Host>* hosts, std::vector<HostMember>* members) {
  const int width = s.exchange.width, experts = s.exchange.experts();
  for (Host& h : *hosts) {
    h.probabilities = h.logits;
    h.expert.resize(s.pairs());
    h.weight.resize(s.pairs());
    h.row_of.resize(s.pairs());
    h.token_of.resize(static_cast<size_t>(s.sent_rows()));
    HostMember m;
    m.sent.resize(static_cast<size_t>(experts) + 1);
    RouterForward(s.rows, experts, s.top_k, false, h.probabilities.data(), h.expert.data(),
                  h.weight.data());
    if (s.exchange.capacity > 0) {
      SortIntoCapacity(h.expert.data(), s.rows, experts, s.top_k, s.exchange.capacity,
                       m.sent.data(), h.token_of.data(), h.row_of.data());
    } else {
      SortByExpert(h.expert.data(), s.rows, experts, s.top_k, m.sent.data(), h.token_of.data(),
                   h.row_of.data());
    }
    m.tokens.resize(s.values(s.sent_rows()));
    GatherTokens(h.x.data(), h.token_of.data(), s.sent_rows(), width, m.tokens.data());
    members->push_back(m);
  }
  ExchangeOnHost(s.exchange, Op::DISPATCH_F, members);
  for (size_t m = 0; m < members->size(); ++m) {
    HostMember& member = (*members)[m];
    RunExperts(s.exchange, static_cast<int>(m), member.first, &member.experts);
  }
  ExchangeOnHost(s.exchange, Op::COMBINE_F, members);
  for (size_t m = 0; m < members->size(); ++m) {
    Host& h = (*hosts)[m];
    h.y.resize(h.residual.size());
    CombineForward(h.residual.data(), (*members)[m].tokens.data(), h.row_of.data(), h.weight.data(),
                   s.rows, s.top_k, width, h.y.data());
  }
}

void HostBackward(const Sizes& s, std::vector<Host>* hosts, std::vector<HostMember>* members) {
  const int width = s.exchange.width;
  for (size_t m = 0; m < members->size(); ++m) {
    Host& h = (*hosts)[m];
    std::vector<float> dsorted(s.values(s.sent_rows()));
    h.dweight.resize(s.pairs());
    CombineBackwardInput(h.dy.data(), (*members)[m].tokens.data(), h.row_of.data(), h.weight.data(),
                         s.rows, s.top_k, width, dsorted.data(), h.dweight.data());
    (*members)[m].tokens = dsorted;
  }
  ExchangeOnHost(s.exchange, Op::COMBINE_B, members);
  for (size_t m = 0; m < members->size(); ++m) {
    HostMember& member = (*members)[m];
    RunExperts(s.exchange, static_cast<int>(m), member.first, &member.experts);
  }
  ExchangeOnHost(s.exchange, Op::DISPATCH_B, members);
  for (size_t m = 0; m < members->size(); ++m) {
    Host& h = (*hosts)[m];
    h.dx.resize(h.x.size());
    h.dlogits.resize(s.scores());
    GatherTokensBackwardInput((*members)[m].tokens.data(), h.row_of.data(), s.rows, s.top_k, width,
                              h.dx.data());
    RouterBackwardInput(h.probabilities.data(), h.expert.data(), h.dweight.data(), s.rows,
                        s.exchange.experts(), s.top_k, false, {}, h.dlogits.data());
  }
}

struct Device {
  OnDevice<float> probabilities, weight, dweight;
  OnDevice<int32_t> expert, sent, token_of, row_of, first, received, overflow;
  OnDevice<Bf16> x, residual, dy, tokens, combined, rows, y, dx, dlogits;
  OnDevice<std::byte> work;

  Device(const Sizes& s, const Host& h)
      : probabilities(h.logits),
        weight(s.pairs()),
        dweight(s.pairs()),
        expert(s.pairs()),
        sent(static_cast<size_t>(s.exchange.experts()) + 1),
        token_of(static_cast<size_t>(s.sent_rows())),
        row_of(s.pairs()),
        first(static_cast<size_t>(s.exchange.local_experts) + 1),
        received(static_cast<size_t>(s.exchange.experts())),
        overflow(std::vector<int32_t>{0}),
        x(Rounded(h.x)),
        residual(Rounded(h.residual)),
        dy(Rounded(h.dy)),
        tokens(s.values(s.sent_rows())),
        combined(s.values(s.sent_rows())),
        rows(s.values(s.most_rows())),
        y(h.x.size()),
        dx(h.x.size()),
        dlogits(s.scores()),
        work(gpu::SortWork(s.rows, s.exchange.experts(), s.top_k)) {}
};

/// The way through all members, in step.
class DeviceGroup {
 public:
  DeviceGroup(const Sizes& sizes, const std::vector<Host>& hosts) : s_(sizes) {
    for (const Host& h : hosts) all.emplace_back(s_, h);
  }

  void Forward() {
    const gpu::Stream stream = TestStream();
    for (Device& d : all) {
      gpu::RouterForward(stream, s_.rows, experts(), s_.top_k, d.probabilities.data(),
                         d.expert.data(), d.weight.data());
      gpu::SortByExpert(stream, d.expert.data(), s_.rows, experts(), s_.top_k, s_.exchange.capacity,
                        d.work.data(), d.sent.data(), d.token_of.data(), d.row_of.data(), nullptr);
      gpu::GatherTokens(stream, d.x.data(), d.token_of.data(), s_.sent_rows(), width(),
                        d.tokens.data());
    }
    ToExpertsAndBack(true, &Device::tokens, &Device::combined);
    for (Device& d : all) {
      gpu::CombineForward(stream, d.residual.data(), d.combined.data(), d.row_of.data(),
                          d.weight.data(), s_.rows, s_.top_k, width(), d.y.data());
    }
  }

  void Backward() {
    const gpu::Stream stream = TestStream();
    for (Device& d : all) {
      d.tokens.Poison();
      gpu::CombineBackwardInput(stream, d.dy.data(), d.combined.data(), d.row_of.data(),
                                d.token_of.data(), d.weight.data(), s_.rows, s_.sent_rows(),
                                s_.top_k, width(), d.tokens.data(), d.dweight.data());
      d.combined.Poison();
      d.rows.Poison();
    }
    ToExpertsAndBack(false, &Device::tokens, &Device::combined);
    for (Device& d : all) {
      gpu::GatherTokensBackwardInput(stream, d.combined.data(), d.row_of.data(), s_.rows, s_.top_k,
                                     width(), d.dx.data());
      gpu::RouterBackwardInput(stream, d.probabilities.data(), d.expert.data(), d.dweight.data(),
                               s_.rows, experts(), s_.top_k, d.dlogits.data());
    }
  }

  std::vector<Device> all;

 private:
  int experts() const { return s_.exchange.experts(); }
  int width() const { return s_.exchange.width; }

  gpu::ExchangePeers Peers(OnDevice<Bf16> Device::*tokens) {
    gpu::ExchangePeers peers = {};
    peers.members = s_.exchange.members;
    peers.local_experts = s_.exchange.local_experts;
    for (size_t m = 0; m < all.size(); ++m) {
      Device& d = all[m];
      peers.peer[m] = {d.sent.data(), (d.*tokens).data(), d.first.data(), d.received.data(),
                       d.rows.data()};
    }
    return peers;
  }

  void ToExpertsAndBack(bool count, OnDevice<Bf16> Device::*from, OnDevice<Bf16> Device::*to) {
    for (size_t m = 0; m < all.size(); ++m) {
      Device& d = all[m];
      gpu::PullToExperts(TestStream(), Peers(from), static_cast<int>(m), width(),
                         s_.exchange.capacity, s_.most_rows(), count ? d.first.data() : nullptr,
                         count ? d.received.data() : nullptr, d.overflow.data(), 2);
      CHECK(d.overflow.Get()[0] == 0);
      std::vector<Bf16> rows = d.rows.Get();
      RunExperts(s_.exchange, static_cast<int>(m), d.first.Get(), &rows);
      d.rows.Put(rows);
    }
    for (size_t m = 0; m < all.size(); ++m) {
      gpu::PullToTokens(TestStream(), Peers(to), static_cast<int>(m), width(), s_.sent_rows(), 3);
    }
  }

  const Sizes s_;
};

TEST_SUITE("kernel") {
  TEST_CASE("expert group: from the router to the experts and back as on the host") {
    Draws random(1);
    for (int round = 0; round < (SmallShapes() ? 20 : 60); ++round) {
      const Sizes s = RandomSizes(&random);
      CAPTURE(ToString(s));
      std::vector<Host> hosts;
      for (int m = 0; m < s.exchange.members; ++m) hosts.push_back(RandomHost(s, &random));
      std::vector<HostMember> members;
      HostForward(s, &hosts, &members);
      HostBackward(s, &hosts, &members);

      ShuffleThreads(random());
      DeviceGroup group(s, hosts);
      group.Forward();
      group.Backward();
      for (size_t m = 0; m < hosts.size(); ++m) {
        const Host& h = hosts[m];
        const Device& d = group.all[m];
        CHECK(d.expert.Get() == h.expert);
        CHECK(d.sent.Get() == members[m].sent);
        CHECK(d.token_of.Get() == h.token_of);
        CHECK(d.row_of.Get() == h.row_of);
        CHECK(d.first.Get() == members[m].first);
        CHECK(d.received.Get() == members[m].received);
        CHECK(RelativeError(Doubles(d.y.Get()), Doubles(h.y)) < 4e-3);
        CHECK(RelativeError(Doubles(d.dweight.Get()), Doubles(h.dweight)) < 1e-5);
        CHECK(RelativeError(Doubles(d.dx.Get()), Doubles(h.dx)) < 6e-3);
        CHECK(RelativeError(Doubles(d.dlogits.Get()), Doubles(h.dlogits)) < 4e-3);
      }
    }
  }
}

}  // namespace
}  // namespace contraflow::expert_group_test
