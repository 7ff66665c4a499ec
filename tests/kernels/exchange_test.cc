#include "kernels/gpu/exchange.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "kernels/gpu/parcels.h"
#include "kernels/host/routing.h"
#include "tests/emulator/test_gpu.h"
#include "tests/kernels/host_exchange.h"
#include "tests/kernels/routing.h"

namespace contraflow::exchange_test {
namespace {

using gpu::Bf16;

std::vector<Bf16> ToBf16s(const std::vector<float>& values) {
  std::vector<Bf16> rounded;
  for (const float value : values) rounded.push_back(gpu::ToBf16(value));
  return rounded;
}

struct DeviceMember {
  OnDevice<int32_t> sent, first, received, overflow;
  OnDevice<Bf16> tokens, experts;

  DeviceMember(const HostMember& host, size_t expert_rows, int width)
      : sent(host.sent),
        first(host.first.size()),
        received(host.received.size()),
        overflow(std::vector<int32_t>{0}),
        tokens(ToBf16s(host.tokens)),
        experts(expert_rows * static_cast<size_t>(width)) {}
};

/// An expert group whose members send random rows: the host has done DISPATCH_F, the device not.
struct Group {
  ExchangeShape shape;
  std::vector<HostMember> host;
  std::vector<DeviceMember> device;

  /// Every member of the device has room for `room` rows, or if that is negative for all that come.
  Group(const ExchangeShape& exchange, int most_rows, int room, Draws* random) : shape(exchange) {
    const auto experts = static_cast<size_t>(shape.experts());
    for (int m = 0; m < shape.members; ++m) {
      const Routing r = RandomRouting(random->Below(most_rows + 1), shape.experts(),
                                      1 + random->Below(std::min(shape.experts(), 3)), random);
      HostMember member;
      member.sent.resize(experts + 1);
      std::vector<int32_t> row_of(r.expert.size());
      std::vector<int32_t> token_of(
          shape.capacity > 0 ? experts * static_cast<size_t>(shape.capacity) : r.expert.size());
      if (shape.capacity > 0) {
        SortIntoCapacity(r.expert.data(), r.rows, r.experts, r.top_k, shape.capacity,
                         member.sent.data(), token_of.data(), row_of.data());
      } else {
        SortByExpert(r.expert.data(), r.rows, r.experts, r.top_k, member.sent.data(),
                     token_of.data(), row_of.data());
      }
      for (const Bf16 x :
           RandomBf16(token_of.size() * static_cast<size_t>(shape.width), (*random)())) {
        member.tokens.push_back(gpu::ToFloat(x));
      }
      host.push_back(member);
    }
    ExchangeOnHost(shape, Op::DISPATCH_F, &host);
    for (const HostMember& member : host) {
      device.emplace_back(member, static_cast<size_t>(room < 0 ? member.first.back() : room),
                          shape.width);
    }
  }

  gpu::ExchangePeers Peers() {
    gpu::ExchangePeers peers = {};
    peers.members = shape.members;
    peers.local_experts = shape.local_experts;
    for (size_t m = 0; m < device.size(); ++m) {
      DeviceMember& d = device[m];
      peers.peer[m] = {d.sent.data(), d.tokens.data(), d.first.data(), d.received.data(),
                       d.experts.data()};
    }
    return peers;
  }
  int MostRows(size_t m) const { return static_cast<int>(device[m].experts.size()) / shape.width; }
  void PullToExperts(size_t m, bool count, int ctas) {
    DeviceMember& d = device[m];
    gpu::PullToExperts(TestStream(), Peers(), static_cast<int>(m), shape.width, shape.capacity,
                       MostRows(m), count ? d.first.data() : nullptr,
                       count ? d.received.data() : nullptr, d.overflow.data(), ctas);
  }
  void PullToTokens(size_t m, int ctas) {
    gpu::PullToTokens(TestStream(), Peers(), static_cast<int>(m), shape.width,
                      static_cast<int>(host[m].tokens.size()) / shape.width, ctas);
  }
};

ExchangeShape RandomShape(Draws* random) {
  ExchangeShape shape{};
  shape.members = random->Below(8) == 0 ? gpu::kMaxPeers : 1 << random->Below(4);
  shape.local_experts = 1 + random->Below(shape.members > 4 ? 3 : 9);
  const int vectors = 1 + random->Below(random->Below(8) == 0 ? 300 : 40);
  shape.width = random->Below(3) == 0 ? vectors : 8 * vectors;
  if (random->Below(2) == 0) shape.capacity = 1 + random->Below(6);
  return shape;
}

std::string ToString(const ExchangeShape& shape) {
  return std::to_string(shape.members) + " members of " + std::to_string(shape.local_experts) +
         " experts, rows of " + std::to_string(shape.width) + ", capacity " +
         std::to_string(shape.capacity);
}

/// All members get their experts' rows, return them, and get other rows by the same counts.
void CheckGroup(const ExchangeShape& shape, int most_rows, Draws* random) {
  CAPTURE(ToString(shape));
  Group group(shape, most_rows, -1, random);
  const int ctas = 1 + random->Below(4);
  ShuffleThreads((*random)());
  for (size_t m = 0; m < group.host.size(); ++m) {
    group.PullToExperts(m, true, ctas);
    CHECK(group.device[m].first.Get() == group.host[m].first);
    CHECK(group.device[m].received.Get() == group.host[m].received);
    CHECK(group.device[m].overflow.Get()[0] == 0);
    CHECK(group.device[m].experts.Get() == ToBf16s(group.host[m].experts));
  }
  for (size_t m = 0; m < group.host.size(); ++m) {
    group.device[m].tokens.Poison();
    group.PullToTokens(m, ctas);
    CHECK(group.device[m].tokens.Get() == ToBf16s(group.host[m].tokens));
  }
  for (size_t m = 0; m < group.host.size(); ++m) {
    for (float& x : group.host[m].tokens) x = -2 * x;
    group.device[m].tokens.Put(ToBf16s(group.host[m].tokens));
  }
  ExchangeOnHost(shape, Op::COMBINE_B, &group.host);
  for (size_t m = 0; m < group.host.size(); ++m) {
    group.device[m].experts.Poison();
    group.PullToExperts(m, false, ctas);
    CHECK(group.device[m].experts.Get() == ToBf16s(group.host[m].experts));
  }
}

/// Members that pack, send and unpack, as over NCCL, get what the host's get.
void CheckParcels(const ExchangeShape& shape, int most_rows, Draws* random) {
  CAPTURE(ToString(shape));
  Group group(shape, most_rows, -1, random);
  const auto members = static_cast<size_t>(shape.members);
  const auto local = static_cast<size_t>(shape.local_experts);
  int rows = 0;
  for (const HostMember& member : group.host) {
    for (size_t o = 0; o < members; ++o) {
      rows = std::max(rows, member.sent[(o + 1) * local] - member.sent[o * local]);
    }
  }
  const size_t parcel = static_cast<size_t>(rows * shape.width), all = members * parcel;
  std::vector<OnDevice<Bf16>> out, in;
  std::vector<OnDevice<int32_t>> begins;
  std::vector<gpu::Parcels> parcels;
  for (size_t m = 0; m < members; ++m) {
    out.emplace_back(all);
    in.emplace_back(all);
    std::vector<int32_t> of_members;
    for (const HostMember& other : group.host) {
      const auto begin = other.sent.begin() + static_cast<ptrdiff_t>(m * local);
      of_members.insert(of_members.end(), begin, begin + static_cast<ptrdiff_t>(local) + 1);
    }
    // Its own are read elsewhere.
    std::fill_n(of_members.begin() + static_cast<ptrdiff_t>(m * (local + 1)), local + 1, -7);
    begins.emplace_back(of_members);
    parcels.push_back({out[m].data(), in[m].data(), rows, shape.width, shape.members,
                       static_cast<int>(m), shape.local_experts});
  }
  const auto send = [&] {
    std::vector<std::vector<Bf16>> sent, got;
    for (size_t m = 0; m < members; ++m) {
      sent.push_back(out[m].Get());
      got.push_back(in[m].Get());
    }
    for (size_t from = 0; from < members; ++from) {
      for (size_t to = 0; to < members; ++to) {
        if (from == to) continue;
        const auto begin = sent[from].begin() + static_cast<ptrdiff_t>(to * parcel);
        std::copy_n(begin, parcel, got[to].begin() + static_cast<ptrdiff_t>(from * parcel));
      }
    }
    for (size_t m = 0; m < members; ++m) in[m].Put(got[m]);
  };
  const int ctas = 1 + random->Below(4);
  ShuffleThreads((*random)());
  for (size_t m = 0; m < members; ++m) {
    DeviceMember& d = group.device[m];
    gpu::PackTokens(TestStream(), parcels[m], d.sent.data(), d.tokens.data(),
                    static_cast<int>(d.tokens.size()) / shape.width, ctas);
  }
  send();
  for (size_t m = 0; m < members; ++m) {
    DeviceMember& d = group.device[m];
    gpu::CountParcels(TestStream(), parcels[m], d.sent.data(), begins[m].data(), group.MostRows(m),
                      d.first.data(), d.received.data(), d.overflow.data());
    gpu::UnpackExperts(TestStream(), parcels[m], d.first.data(), d.received.data(),
                       d.experts.data(), group.MostRows(m), ctas);
    CHECK(d.first.Get() == group.host[m].first);
    CHECK(d.received.Get() == group.host[m].received);
    CHECK(d.overflow.Get()[0] == 0);
    CHECK(d.experts.Get() == ToBf16s(group.host[m].experts));
    out[m].Poison();
    in[m].Poison();
  }
  for (size_t m = 0; m < members; ++m) {
    DeviceMember& d = group.device[m];
    gpu::PackExperts(TestStream(), parcels[m], d.first.data(), d.received.data(), d.experts.data(),
                     group.MostRows(m), ctas);
  }
  send();
  for (size_t m = 0; m < members; ++m) {
    DeviceMember& d = group.device[m];
    d.tokens.Poison();
    gpu::UnpackTokens(TestStream(), parcels[m], d.sent.data(), d.tokens.data(),
                      static_cast<int>(d.tokens.size()) / shape.width, ctas);
    CHECK(d.tokens.Get() == ToBf16s(group.host[m].tokens));
  }
}

TEST_SUITE("kernel") {
  TEST_CASE("exchange: rows and counts as the host's") {
    Draws random(3);
    const int most_rows = SmallShapes() ? 15 : 400;
    for (int round = 0; round < (SmallShapes() ? 16 : 100); ++round) {
      CheckGroup(RandomShape(&random), most_rows, &random);
    }
    // More experts than a warp sees at a time.
    for (const ExchangeShape shape :
         {ExchangeShape{1, 1024, 4, 0}, {2, 150, 8, 0}, {4, 35, 3, 0}, {2, 40, 1, 2}}) {
      CheckGroup(shape, 60, &random);
    }
  }

  TEST_CASE("exchange: rows that find no room") {
    Draws random(4);
    int overflowed = 0, fitted = 0;
    for (int round = 0; round < 12; ++round) {
      const ExchangeShape shape = RandomShape(&random);
      const int room = random.Below(40);
      CAPTURE(ToString(shape));
      CAPTURE(room);
      // After the rows that may be used lie some that may not.
      Group group(shape, 20, room + 5, &random);
      for (size_t m = 0; m < group.host.size(); ++m) {
        const HostMember& host = group.host[m];
        DeviceMember& device = group.device[m];
        gpu::PullToExperts(TestStream(), group.Peers(), static_cast<int>(m), shape.width,
                           shape.capacity, room, device.first.data(), device.received.data(),
                           device.overflow.data(), 2);
        const bool over = host.first.back() > room;
        ++(over ? overflowed : fitted);
        CHECK(device.overflow.Get()[0] == (over ? 1 : 0));
        std::vector<int32_t> first = host.first;
        for (int32_t& begin : first) begin = std::min(begin, room);
        CHECK(device.first.Get() == first);
        // Values written, and those of them that count.
        std::vector<Bf16> experts = ToBf16s(host.experts);
        experts.resize(std::min(experts.size(), static_cast<size_t>(room * shape.width)));
        experts.resize(device.experts.size(), Bf16{0xffff});
        CHECK(device.experts.Get() == experts);
        const std::vector<int32_t> received = device.received.Get();
        for (int local = 0; local < shape.local_experts; ++local) {
          const auto l = static_cast<size_t>(local);
          int rows = 0;
          for (int n = 0; n < shape.members; ++n) {
            const auto at = static_cast<size_t>(n * shape.local_experts + local);
            rows += received[at];
            CHECK(received[at] <= host.received[at]);
          }
          CHECK(rows == first[l + 1] - first[l]);
        }
      }
      // They come back as 0, all others as they were.
      std::vector<HostMember> back = group.host;
      for (size_t m = 0; m < back.size(); ++m) {
        const size_t written = static_cast<size_t>(room * shape.width);
        for (size_t i = written; i < back[m].experts.size(); ++i) back[m].experts[i] = 0;
      }
      ExchangeOnHost(shape, Op::DISPATCH_B, &back);
      for (size_t m = 0; m < back.size(); ++m) {
        group.device[m].tokens.Poison();
        group.PullToTokens(m, 3);
        CHECK(group.device[m].tokens.Get() == ToBf16s(back[m].tokens));
      }
    }
    CHECK(overflowed > 10);
    CHECK(fitted > 10);
  }

  TEST_CASE("exchange: no more rows are written than there is room for") {
    Draws random(5);
    Group group({2, 3, 8, 4}, 20, -1, &random);
    for (size_t m = 0; m < 2; ++m) group.PullToExperts(m, true, 1);
    group.device[1].tokens.Poison();
    gpu::PullToTokens(TestStream(), group.Peers(), 1, 8, 7, 1);
    std::vector<Bf16> tokens = ToBf16s(group.host[1].tokens);
    std::fill(tokens.begin() + 7 * 8, tokens.end(), Bf16{0xffff});
    CHECK(group.device[1].tokens.Get() == tokens);
    // Counts here say more.
    group.device[0].experts.Poison();
    gpu::PullToExperts(TestStream(), group.Peers(), 0, 8, 4, 9, nullptr, nullptr, nullptr, 1);
    std::vector<Bf16> experts = ToBf16s(group.host[0].experts);
    std::fill(experts.begin() + 9 * 8, experts.end(), Bf16{0xffff});
    CHECK(group.device[0].experts.Get() == experts);
  }

  TEST_CASE("parcels: rows and counts as where members read each other's memory") {
    Draws random(7);
    for (int round = 0; round < (SmallShapes() ? 12 : 60); ++round) {
      ExchangeShape shape = RandomShape(&random);
      shape.capacity = 0;
      CheckParcels(shape, SmallShapes() ? 15 : 300, &random);
    }
    // More members, and more experts, than a warp looks at at a time.
    for (const ExchangeShape shape : {ExchangeShape{70, 1, 8, 0}, {33, 2, 3, 0}, {2, 40, 8, 0}}) {
      CheckParcels(shape, SmallShapes() ? 5 : 100, &random);
    }
  }

  TEST_CASE("parcels: groups that are not possible") {
    const gpu::Parcels parcels = {nullptr, nullptr, 4, 8, 2, 2, 3};
    CHECK_THROWS_WITH_AS(gpu::PackTokens(TestStream(), parcels, nullptr, nullptr, 1, 3),
                         "PackTokens: member 2 of 2, 3 experts each, parcels of 4 rows, 3 CTAs; at "
                         "most 1024 experts in all are possible",
                         gpu::GpuError);
    CHECK_THROWS_AS(gpu::UnpackExperts(TestStream(), {nullptr, nullptr, 4, 8, 2, 1, 600}, nullptr,
                                       nullptr, nullptr, 1, 3),
                    gpu::GpuError);
  }

  TEST_CASE("exchange: groups that are not possible") {
    gpu::ExchangePeers peers = {};
    peers.members = 17;
    peers.local_experts = 2;
    CHECK_THROWS_WITH_AS(gpu::PullToTokens(TestStream(), peers, 3, 8, 1, 1),
                         "PullToTokens: member 3 of 17, 2 experts each; at most 16 members and "
                         "1024 experts in all are possible",
                         gpu::GpuError);
    peers.members = 2;
    CHECK_THROWS_AS(gpu::PullToTokens(TestStream(), peers, 2, 8, 1, 1), gpu::GpuError);
    CHECK_THROWS_AS(gpu::PullToTokens(TestStream(), peers, 0, 8, 1, 0), gpu::GpuError);
    CHECK_THROWS_AS(
        gpu::PullToExperts(TestStream(), peers, -1, 8, 0, 1, nullptr, nullptr, nullptr, 1),
        gpu::GpuError);
  }
}

}  // namespace
}  // namespace contraflow::exchange_test
