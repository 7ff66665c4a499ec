#include "runtime/nccl_links.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "compiler/error.h"
#include "tests/failure.h"
#include "tests/nccl_network.h"
#include "tests/run_support.h"

namespace contraflow {
namespace {

constexpr int kWidth = 8, kCapacity = 2, kLocal = 2;
constexpr size_t kPart = size_t{kWidth} * kCapacity;

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
    const auto rows = static_cast<size_t>(plan_.expert_parallel) * kLocal * kPart;
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
    std::fill_n(bits->begin() + static_cast<ptrdiff_t>(kPart) * part, kPart, code);
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

/// A job over NCCL, each of whose processes has issued one step.
struct LinkedJob {
  explicit LinkedJob(const Plan& the_plan, int capacity = kCapacity)
      : plan(the_plan),
        holders(HoldersOfStage(plan)),
        order(RankOrder::kDefault, plan),
        network(order.processes(), NcclNetwork::Processes::kInTurn) {
    const SmBudget budget = {.link_ctas = 3, .expert_ctas = 20};
    for (int p = 0; p < order.processes(); ++p) {
      backends.push_back(std::make_unique<LinkBackend>(plan, order.DeviceOf(p)));
      links.push_back(std::make_unique<NcclLinks>(plan, capacity, order, p, budget,
                                                  network.NcclOf(p), network.GpuOf(p)));
      links.back()->Connect("the one", *backends.back());
      connected.push_back(network.steps[static_cast<size_t>(p)].size());
      Issue(p);
      links.back()->Close();
    }
  }

  void Issue(int p) {
    GpuLinks& l = *links[static_cast<size_t>(p)];
    const Device device = order.DeviceOf(p);
    int32_t group = -1;
    for (const Instruction& i : plan.programs[static_cast<size_t>(device.rank)]) {
      if (group >= 0 && i.group != group) l.EndGroup();
      if (i.group >= 0 && i.group != group) l.BeginGroup();
      group = i.group;
      const Participant self = {device, &i, network.StreamOf(p),
                                backends[static_cast<size_t>(p)].get()};
      switch (WorkOf(i.op)) {
        case Work::kSend:
        case Work::kRecv:
          l.Transfer({&self, 1});
          break;
        case Work::kAllToAll:
          l.Exchange({&self, 1});
          break;
        case Work::kReduce:
          l.Sum({&self, 1});
          break;
        case Work::kCompute:
        case Work::kComponent:
        case Work::kStep:
          break;
      }
    }
    if (group >= 0) l.EndGroup();
  }

  LinkBackend& At(Device device) { return *backends[static_cast<size_t>(order.ProcessOf(device))]; }

  /// The sums over a stage, added where they are in one order.
  std::vector<float> SumOf(int stage, int member, bool experts) {
    std::vector<float> sum;
    for (int replica = 0; replica < plan.data_parallel; ++replica) {
      for (int m = 0; m < plan.expert_parallel; ++m) {
        if (experts && m != member) continue;
        for (const int rank : holders[static_cast<size_t>(stage)]) {
          LinkBackend fresh(plan, {replica, m, rank});
          const std::span<float> part =
              experts ? fresh.ExpertGradients(stage) : fresh.Gradients(stage);
          if (sum.empty()) {
            sum.assign(part.begin(), part.end());
          } else {
            for (size_t k = 0; k < sum.size(); ++k) sum[k] += part[k];
          }
        }
      }
    }
    return sum;
  }

  void CheckSums() {
    for (int stage = 0; stage < plan.stages; ++stage) {
      for (const int rank : holders[static_cast<size_t>(stage)]) {
        for (int replica = 0; replica < plan.data_parallel; ++replica) {
          for (int member = 0; member < plan.expert_parallel; ++member) {
            LinkBackend& backend = At({replica, member, rank});
            const auto equal = [](std::span<float> a, const std::vector<float>& b) {
              return a.size() == b.size() &&
                     (b.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
            };
            CHECK(equal(backend.Gradients(stage), SumOf(stage, member, false)));
            CHECK(equal(backend.ExpertGradients(stage), SumOf(stage, member, true)));
          }
        }
      }
    }
  }

  const Plan plan;
  const std::vector<std::vector<int>> holders;
  RankOrder order;
  NcclNetwork network;
  std::vector<std::unique_ptr<LinkBackend>> backends;
  std::vector<std::unique_ptr<NcclLinks>> links;
  std::vector<size_t> connected;  // steps of each process behind the connecting
};

Plan PlanOf(const char* schedule, int ranks, int members, int replicas, uint64_t seed) {
  return PlanFor(GroupModel(1.0), schedule, ranks, 2 * ranks, members, Level::kBuffer, seed,
                 replicas);
}

TEST_SUITE("unit") {
  TEST_CASE("nccl links: what is issued meets its counterparts however strict NCCL is") {
    uint64_t seed = 1;
    for (const char* schedule : {"1f1b", "zb-1p", "dualpipe"}) {
      for (const auto& [ranks, members, replicas] :
           {std::tuple(2, 1, 1), std::tuple(4, 1, 1), std::tuple(2, 2, 1), std::tuple(4, 2, 1),
            std::tuple(2, 1, 2), std::tuple(2, 2, 2)}) {
        CAPTURE(schedule);
        CAPTURE(ranks);
        CAPTURE(members);
        CAPTURE(replicas);
        LinkedJob job(PlanOf(schedule, ranks, members, replicas, seed++));
        REQUIRE_NOTHROW(job.network.Check());
        REQUIRE_NOTHROW(job.network.Run());
        for (const auto& backend : job.backends) CHECK_NOTHROW(backend->CheckMoved());
        job.CheckSums();
        for (int p = 0; p < job.order.processes(); ++p) CHECK(job.network.OpenOf(p) == 0);
      }
    }
  }

  TEST_CASE("nccl links: an order that is broken ends in a deadlock or meets wrong messages") {
    int noticed = 0, tried = 0;
    std::mt19937 random(5);
    for (const char* schedule : {"1f1b", "dualpipe"}) {
      LinkedJob job(PlanOf(schedule, 4, 1, 1, 7));
      for (size_t p = 0; p < job.network.steps.size(); ++p) {
        const std::vector<NcclNetwork::Step> issued = job.network.steps[p];
        std::vector<NcclNetwork::Step>& steps = job.network.steps[p];
        std::vector<size_t> groups;
        for (size_t at = 0; at < steps.size(); ++at) {
          if (!steps[at].messages.empty()) groups.push_back(at);
        }
        for (int k = 0; k < 4; ++k) {
          const size_t a = random() % groups.size(), b = random() % groups.size();
          if (a == b) continue;
          std::swap(steps[groups[a]], steps[groups[b]]);
          ++tried;
          noticed += Failure([&] { job.network.Run(); }) != "accepted";
          steps = issued;
        }
      }
      CHECK(Failure([&] { job.network.Run(); }) == "accepted");
    }
    CHECK(tried > 20);
    CHECK(noticed * 2 > tried);
  }

  TEST_CASE("nccl links: two ranks that both send first wait for ever") {
    LinkedJob job(PlanOf("1f1b", 2, 1, 1, 3));
    std::vector<NcclNetwork::Step>& steps = job.network.steps[0];
    const auto first = steps.begin() + static_cast<ptrdiff_t>(job.connected[0]);
    const auto receives = [](const NcclNetwork::Step& step) {
      return !step.messages.empty() && !step.messages[0].sends;
    };
    // Rank 0 begins with what it gets last from rank 1.
    const auto back = std::find_if(first, steps.end(), receives);
    REQUIRE(back != steps.end());
    std::rotate(first, back, back + 1);
    const std::string error = Failure([&] { job.network.Run(); });
    CHECK(error.find("deadlock:\n  process 0 receives ") == 0);
    CHECK(error.find(" in \"up\" from 1\n  process 1 receives ") != std::string::npos);
    CHECK(error.find(" in \"down\" from 0") != std::string::npos);
  }

  TEST_CASE("nccl links: one communicator a use with CTAs of the budget") {
    LinkedJob job(PlanOf("dualpipe", 4, 2, 1, 9));
    std::map<std::string, int> ctas, count;
    for (const NcclNetwork::Comm& comm : job.network.comms) {
      ctas[comm.name] = comm.max_ctas;
      ++count[comm.name];
    }
    // 3 CTAs for a link and 20 for experts are no powers of two.
    CHECK(ctas == std::map<std::string, int>{
                      {"all", 1}, {"down", 2}, {"up", 2}, {"experts", 16}, {"sums", 16}});
    CHECK(count == std::map<std::string, int>{
                       {"all", 1}, {"down", 2}, {"up", 2}, {"experts", 4}, {"sums", 1}});
  }

  TEST_CASE("nccl links: connecting reaches every pair that talks later") {
    LinkedJob job(PlanOf("dualpipe", 4, 2, 2, 11));
    for (size_t p = 0; p < job.network.steps.size(); ++p) {
      std::set<std::tuple<int, int, bool>> connected;
      const std::vector<NcclNetwork::Step>& steps = job.network.steps[p];
      int new_ones = 0;
      for (size_t at = 0; at < steps.size(); ++at) {
        for (const NcclNetwork::Message& m : steps[at].messages) {
          const std::tuple pair(m.comm, m.peer, m.sends);
          if (at < job.connected[p]) {
            connected.insert(pair);
          } else {
            new_ones += connected.count(pair) == 0;
          }
        }
      }
      CHECK(connected.size() > 4);
      CHECK(new_ones == 0);
    }
  }

  TEST_CASE("nccl links: experts' exchanges of unknown size are refused with the remedy") {
    const Plan plan = PlanOf("1f1b", 2, 2, 1, 1);
    CHECK(Failure([&] { LinkedJob(plan, 0); }) ==
          "expert groups over NCCL need to know how many rows go to each expert before the device "
          "does; give --capacity, 1.25 for example, or train in one process (--transport threads)");
  }

  TEST_CASE("nccl links: what is aborted takes no more calls and leaves nothing behind") {
    const Plan plan = PlanOf("1f1b", 2, 1, 1, 1);
    const RankOrder order(RankOrder::kDefault, plan);
    NcclNetwork network(order.processes(), NcclNetwork::Processes::kInTurn);
    LinkBackend backend(plan, order.DeviceOf(0));
    {
      NcclLinks links(plan, 0, order, 0, {.link_ctas = 2}, network.NcclOf(0), network.GpuOf(0));
      links.Connect("the one", backend);
      CHECK(network.OpenOf(0) == 4);
      links.Poll();
      std::thread([&] { links.Abort(); }).join();
      CHECK_THROWS_AS(links.Poll(), Aborted);
      CHECK_THROWS_AS(links.BeginGroup(), Aborted);
      CHECK_THROWS_AS(links.Close(), Aborted);
    }
    CHECK(network.OpenOf(0) == 0);
    // One that is never closed, after an error, is aborted.
    NcclNetwork other(order.processes(), NcclNetwork::Processes::kInTurn);
    NcclLinks(plan, 0, order, 0, {.link_ctas = 2}, other.NcclOf(0), other.GpuOf(0))
        .Connect("the one", backend);
    CHECK(other.OpenOf(0) == 0);
  }
}

}  // namespace
}  // namespace contraflow
