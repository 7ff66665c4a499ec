#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "kernels/host/bf16.h"
#include "runtime/exec/links.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/emulator/emulator.h"
#include "tests/emulator/test_gpu.h"
#include "tests/support/support.h"

namespace contraflow::virtual_links_test {
namespace {

constexpr SmBudget kBudget = {
    .partitions = 16, .sms = 8, .compute = 5, .link_ctas = 2, .expert_ctas = 3};

/// Memory of one device that links move.
class MemoryBackend : public GpuBackend {
 public:
  void Upload(int, gpu::Stream) override {}
  void BeginStep(gpu::Stream) override {}
  void Compute(const Instruction&, gpu::Stream) override {}
  void BeforeExchange(const Instruction&, gpu::Stream) override {}
  void AfterExchange(const Instruction&, gpu::Stream) override {}
  ExchangePart Exchange(const Instruction&) override { return part; }
  std::span<std::byte> Message(const Instruction&) override { return message; }
  std::span<float> Gradients(int) override { return dense; }
  std::span<float> ExpertGradients(int) override { return experts; }
  void OptimizerStep(int, gpu::Stream) override {}
  void Download(int, gpu::Stream) override {}
  DeviceStep Results(int) override { return {}; }

  ExchangePart part{};
  std::span<std::byte> message;
  std::span<float> dense, experts;
};

/// Devices with a stream each on a GPU whose streams run in any order.
struct Site {
  Site(std::vector<Device> its_devices, uint64_t seed)
      : devices(std::move(its_devices)), gpu(EmulatedGpuOptions{.seed = seed}) {
    gpu.Partition(static_cast<int>(devices.size()), 8);
    for (size_t d = 0; d < devices.size(); ++d) {
      streams.push_back(
          gpu.NewStream(static_cast<int>(d), Priority::kHigh, "stream " + std::to_string(d)));
      backends.push_back(std::make_unique<MemoryBackend>());
    }
  }

  std::vector<Participant> All(const Instruction& instruction) const {
    std::vector<Participant> all;
    for (size_t d = 0; d < devices.size(); ++d) {
      all.push_back({devices[d], &instruction, streams[d], backends[d].get()});
    }
    return all;
  }
  template <typename T>
  std::span<T> Allocate(size_t count) {
    return {reinterpret_cast<T*>(gpu.Allocate(std::max<size_t>(count, 1) * sizeof(T))), count};
  }
  /// Gives the stream of a device something to do.
  void Do(size_t device, std::function<void()> work) {
    emulator::Enqueue(streams[device].handle, "test", std::move(work));
  }

  const std::vector<Device> devices;
  EmulatedGpu gpu;
  std::vector<gpu::Stream> streams;
  std::vector<std::unique_ptr<MemoryBackend>> backends;
};

template <typename T>
void Copy(const std::vector<T>& from, std::span<T> to) {
  REQUIRE(from.size() == to.size());
  std::copy(from.begin(), from.end(), to.begin());
}
template <typename T>
void Poison(std::span<T> bytes) {
  std::memset(static_cast<void*>(bytes.data()), 0xff, bytes.size_bytes());
}
template <typename T>
std::vector<T> ValuesOf(std::span<T> values) {
  return {values.begin(), values.end()};
}
/// Bits, which can be compared where values are NaN.
std::vector<uint32_t> BitsOf(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  if (!bits.empty()) std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

/// Routing of one expert group: which rows each member sends to whom, and what must become of them.
struct Routing {
  int members, local_experts, width;
  std::vector<std::vector<int32_t>> sent;  // by member: where the rows to each expert begin
  std::vector<std::vector<gpu::Bf16>> tokens;
  int most_rows = 0;

  Routing(int its_members, int its_local_experts, int its_width, std::mt19937* random)
      : members(its_members), local_experts(its_local_experts), width(its_width) {
    for (int m = 0; m < members; ++m) {
      std::vector<int32_t>& begins = sent.emplace_back(1, 0);
      for (int e = 0; e < members * local_experts; ++e) {
        begins.push_back(begins.back() + static_cast<int32_t>((*random)() % 5));
      }
      std::vector<gpu::Bf16>& rows = tokens.emplace_back();
      for (int32_t i = 0; i < begins.back() * width; ++i) {
        rows.push_back(gpu::ToBf16(static_cast<float>((*random)() % 251)));
      }
      most_rows += begins.back();
    }
  }

  std::span<const gpu::Bf16> Rows(int member, int expert) const {
    const auto m = static_cast<size_t>(member), e = static_cast<size_t>(expert);
    return std::span(tokens[m]).subspan(static_cast<size_t>(sent[m][e] * width),
                                        static_cast<size_t>((sent[m][e + 1] - sent[m][e]) * width));
  }
  /// Rows of the experts of a member: by expert, then member, then token.
  std::vector<float> Expected(int member) const {
    std::vector<float> rows;
    for (int local = 0; local < local_experts; ++local) {
      for (int from = 0; from < members; ++from) {
        for (const gpu::Bf16 x : Rows(from, member * local_experts + local)) {
          rows.push_back(gpu::ToFloat(x));
        }
      }
    }
    return rows;
  }
};

std::vector<float> Floats(std::span<const gpu::Bf16> values) {
  std::vector<float> floats;
  for (const gpu::Bf16 value : values) floats.push_back(gpu::ToFloat(value));
  return floats;
}

TEST_SUITE("unit") {
  TEST_CASE("virtual links: a message is copied between what was before and what comes after") {
    const Plan plan = PlanFromText("rank\n SEND_F s0 m0 to=1\nrank\n RECV_F s1 m0 from=0\n");
    std::mt19937 random(1);
    for (uint64_t seed = 1; seed <= 24; ++seed) {
      CAPTURE(seed);
      Site site({{0, 0, 0}, {0, 0, 1}}, seed);
      VirtualLinks links(plan, kBudget, site.gpu, site.streams);
      const size_t size = seed == 1 ? 0 : random() % 5000;
      const std::span<std::byte> source = site.Allocate<std::byte>(size);
      const std::span<std::byte> target = site.Allocate<std::byte>(size + 16);
      std::vector<std::byte> sent(size), before, after;
      for (std::byte& byte : sent) byte = static_cast<std::byte>(random());
      site.backends[0]->message = source;
      site.backends[1]->message = target.first(size);
      site.Do(0, [&] { Copy(sent, source); });
      site.Do(1, [&] { before = ValuesOf(target); });
      const Participant ends[] = {
          {site.devices[0], &plan.programs[0][0], site.streams[0], site.backends[0].get()},
          {site.devices[1], &plan.programs[1][0], site.streams[1], site.backends[1].get()}};
      links.Transfer(ends);
      site.Do(0, [&] { Poison(source); });
      site.Do(1, [&] {
        after = ValuesOf(target);
        Poison(target);
      });
      site.gpu.Synchronize();
      CHECK(before == std::vector<std::byte>(size + 16, std::byte{0xff}));
      sent.resize(size + 16, std::byte{0xff});
      CHECK(after == sent);
    }
  }

  TEST_CASE("virtual links: members exchange between what was before and what comes after") {
    const Instruction dispatch = Component(Op::DISPATCH_F, 0, 0, 0);
    const Instruction combine = Component(Op::COMBINE_F, 0, 0, 0);
    Plan plan = PlanFromText("rank\n DISPATCH_F s0 l0 m0\n");
    std::mt19937 random(2);
    for (uint64_t seed = 1; seed <= 9; ++seed) {
      for (int members = 1; members <= 3; ++members) {
        CAPTURES(seed, members);
        plan.expert_parallel = members;
        std::vector<Device> devices;
        for (int m = 0; m < members; ++m) devices.push_back({0, m, 0});
        Site site(devices, seed);
        const SmBudget budget = members == 1 ? SmBudget{.compute = 5, .link_ctas = 2} : kBudget;
        VirtualLinks links(plan, budget, site.gpu, site.streams);
        const Routing routing(members, 1 + static_cast<int>(random() % 3), 8, &random);
        std::vector<std::vector<float>> there(static_cast<size_t>(members)), back = there;
        for (int m = 0; m < members; ++m) {
          const auto at = static_cast<size_t>(m);
          const auto sent = site.Allocate<int32_t>(routing.sent[at].size());
          const auto tokens = site.Allocate<gpu::Bf16>(routing.tokens[at].size());
          const auto first = site.Allocate<int32_t>(static_cast<size_t>(routing.local_experts) + 1);
          const auto received =
              site.Allocate<int32_t>(static_cast<size_t>(members * routing.local_experts));
          const auto rows =
              site.Allocate<gpu::Bf16>(static_cast<size_t>(routing.most_rows * routing.width));
          const auto overflow = site.Allocate<int32_t>(1);
          ExchangePart& part = site.backends[at]->part;
          part.peer = {sent.data(), tokens.data(), first.data(), received.data(), rows.data()};
          part.to_experts = true;
          part.first = first.data();
          part.received = received.data();
          part.overflow = overflow.data();
          part.local_experts = routing.local_experts;
          part.width = routing.width;
          part.most_rows = routing.most_rows;
          part.sent_rows = routing.sent[at].back();
          site.Do(at, [=, &routing] {
            Copy(routing.sent[at], sent);
            Copy(routing.tokens[at], tokens);
          });
        }
        links.Exchange(site.All(dispatch));
        for (int m = 0; m < members; ++m) {
          const auto at = static_cast<size_t>(m);
          ExchangePart& part = site.backends[at]->part;
          const size_t size = routing.Expected(m).size();
          site.Do(at, [=, &there, &routing] {
            there[at] = Floats({part.peer.experts, size});
            // Experts work on their rows; the sources may be overwritten.
            for (size_t i = 0; i < size; ++i) {
              part.peer.experts[i] = gpu::ToBf16(1 + gpu::ToFloat(part.peer.experts[i]));
            }
            Poison(std::span(part.peer.tokens, routing.tokens[at].size()));
          });
          part.to_experts = false;
          part.first = part.received = nullptr;
        }
        links.Exchange(site.All(combine));
        for (int m = 0; m < members; ++m) {
          const auto at = static_cast<size_t>(m);
          const ExchangePart& part = site.backends[at]->part;
          site.Do(at, [=, &back, &routing] {
            back[at] = Floats({part.peer.tokens, routing.tokens[at].size()});
            Poison(std::span(part.peer.experts, static_cast<size_t>(routing.most_rows)));
          });
        }
        site.gpu.Synchronize();
        for (int m = 0; m < members; ++m) {
          const auto at = static_cast<size_t>(m);
          CHECK(there[at] == routing.Expected(m));
          std::vector<float> expected = Floats(routing.tokens[at]);
          for (float& x : expected) ++x;
          CHECK(back[at] == expected);
        }
      }
    }
  }

  TEST_CASE(
      "virtual links: sums are taken replica by replica and member by member and in route order") {
    const Instruction reduce = StageOp(Op::REDUCE, 0);
    Plan plan = PlanFromText(R"(
route 1 0 : 0
route 0 1 : 1
rank
 REDUCE s0
rank
 REDUCE s0
)");
    plan.data_parallel = 2;
    plan.expert_parallel = 2;
    std::vector<Device> devices;
    for (int d = 0; d < 2; ++d) {
      for (int e = 0; e < 2; ++e) {
        for (const int rank : {1, 0}) devices.push_back({d, e, rank});  // as HoldersOfStage
      }
    }
    for (unsigned seed = 1; seed <= 6; ++seed) {
      for (const size_t dense : {size_t{0}, size_t{5}, size_t{64}, size_t{1023}}) {
        CAPTURES(seed, dense);
        const size_t experts = dense / 3;
        Site site(devices, seed);
        VirtualLinks links(plan, kBudget, site.gpu, site.streams);
        std::vector<std::vector<float>> values, expert_values, got(8), expert_got(8);
        for (size_t d = 0; d < devices.size(); ++d) {
          const auto number = static_cast<unsigned>(d);
          values.push_back(RandomFloats(dense, seed * 100 + number));
          expert_values.push_back(RandomFloats(experts, seed * 100 + 50 + number));
          MemoryBackend& backend = *site.backends[d];
          backend.dense = site.Allocate<float>(dense);
          backend.experts = site.Allocate<float>(experts);
          site.Do(d, [&, d] {
            Copy(values[d], backend.dense);
            Copy(expert_values[d], backend.experts);
          });
        }
        links.Sum(site.All(reduce));
        for (size_t d = 0; d < devices.size(); ++d) {
          site.Do(d, [&, d] {
            MemoryBackend& backend = *site.backends[d];
            got[d] = ValuesOf(backend.dense);
            expert_got[d] = ValuesOf(backend.experts);
            Poison(backend.dense);
            Poison(backend.experts);
          });
        }
        site.gpu.Synchronize();
        std::vector<float> sum(dense), expert_sums[2];
        for (size_t d = 0; d < devices.size(); ++d) {
          for (size_t i = 0; i < dense; ++i) sum[i] = d == 0 ? values[d][i] : sum[i] + values[d][i];
          std::vector<float>& mine = expert_sums[devices[d].member];
          const bool is_first = mine.empty();
          mine.resize(experts);
          for (size_t i = 0; i < experts; ++i) {
            mine[i] = is_first ? expert_values[d][i] : mine[i] + expert_values[d][i];
          }
        }
        for (size_t d = 0; d < devices.size(); ++d) {
          CHECK(BitsOf(got[d]) == BitsOf(sum));
          CHECK(BitsOf(expert_got[d]) == BitsOf(expert_sums[devices[d].member]));
        }
      }
    }
  }

  TEST_CASE("virtual links: more devices than a kernel can reach are refused") {
    EmulatedGpu gpu;
    Plan plan = PlanFromText("rank\n REDUCE s0\n");
    plan.data_parallel = 16;
    VirtualLinks(plan, kBudget, gpu, {});
    plan.data_parallel = 17;
    CHECK_THROWS_WITH_AS(VirtualLinks(plan, kBudget, gpu, {}),
                         "REDUCE: 17 devices of one GPU would meet, of which 16 can; compile the "
                         "plan for fewer devices, or run it on more GPUs",
                         Error);
    plan.data_parallel = 1;
    plan.expert_parallel = 17;
    CHECK_THROWS_WITH_AS(VirtualLinks(plan, kBudget, gpu, {}),
                         "expert group: 17 devices of one GPU would meet, of which 16 can; compile "
                         "the plan for fewer devices, or run it on more GPUs",
                         Error);
  }
}

}  // namespace
}  // namespace contraflow::virtual_links_test
