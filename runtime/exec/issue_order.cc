// The order is made of ranks first: all devices of a rank run one program, so whatever order is
// right for ranks is right for their devices, replica by replica and member by member at each of
// its points.

#include "runtime/exec/issue_order.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

/// An instruction of a rank.
struct At {
  static constexpr uint32_t kNone = UINT32_MAX;

  int32_t rank = -1;
  uint32_t index = kNone;
};

std::string TextOf(const Plan& plan, At at) {
  const Instruction& i = plan.program(at.rank)[at.index];
  return "rank " + std::to_string(at.rank) + ", instruction " + std::to_string(at.index) + " (" +
         ToString(i) + ")";
}

/// The points of a plan's order in terms of ranks, one after another.
class ProgramOrder {
 public:
  explicit ProgramOrder(const Plan& plan)
      : plan_(plan), holders_(HoldersOfStage(plan)), states_(plan.programs.size()) {
    PairMessages();
    FindReduces();
  }

  /// Calls visit(participants) for each point.
  template <typename Visit>
  void Walk(Visit visit) {
    for (int32_t rank = 0; rank < plan_.ranks; ++rank) Enter(rank);
    for (size_t next = 0; next < ready_.size(); ++next) {
      const std::vector<At>& participants = ParticipantsOf(ready_[next]);
      visit(participants);
      for (const At at : participants) {
        State& state = StateOf(at.rank);
        if (--state.left > 0) continue;
        state.begin = state.end;
        Enter(at.rank);
      }
    }
    for (size_t r = 0; r < states_.size(); ++r) {
      if (states_[r].begin < plan_.programs[r].size()) ThrowCircle(static_cast<int32_t>(r));
    }
  }

 private:
  /// Position of a rank: at instructions [begin, end), several if they are posted together, of
  /// which `left` have not met their partners.
  struct State {
    uint32_t begin = 0, end = 0, left = 0;
  };

  const Instruction& Of(At at) const { return plan_.program(at.rank)[at.index]; }
  At& PartnerOf(At at) { return partners_[static_cast<size_t>(at.rank)][at.index]; }
  State& StateOf(int32_t rank) { return states_[static_cast<size_t>(rank)]; }
  /// Participants in the REDUCE of a stage.
  std::vector<At>& HoldersOf(int32_t stage) { return reduces_[static_cast<size_t>(stage)]; }
  /// The rank has come to the instruction, or is past it.
  bool Arrived(At at) { return at.index < StateOf(at.rank).end; }

  /// Messages of a directed edge meet in the order of both programs.
  void PairMessages() {
    struct Edge {
      std::vector<At> sends;
      size_t met = 0;
    };
    std::unordered_map<uint64_t, Edge> edges;
    const auto edge = [&](int32_t from, int32_t to) -> Edge& {
      return edges[static_cast<uint64_t>(from) << 32 | static_cast<uint32_t>(to)];
    };
    const auto each_message = [&](auto visit) {
      for (int32_t rank = 0; rank < plan_.ranks; ++rank) {
        const Program& program = plan_.program(rank);
        for (uint32_t index = 0; index < program.size(); ++index) {
          if (IsMessage(program[index].op)) visit(At{rank, index});
        }
      }
    };
    for (const Program& program : plan_.programs) partners_.emplace_back(program.size());
    each_message([&](At at) {
      const int32_t peer = Of(at).peer;
      if (peer < 0 || peer >= plan_.ranks || peer == at.rank) {
        throw Error(TextOf(plan_, at) + ": there is no such peer; verify the plan");
      }
      if (IsSend(Of(at).op)) edge(at.rank, peer).sends.push_back(at);
    });
    each_message([&](At at) {
      if (IsSend(Of(at).op)) return;
      Edge& from = edge(Of(at).peer, at.rank);
      if (from.met == from.sends.size()) {
        throw Error(TextOf(plan_, at) + ": its peer never sends it; verify the plan");
      }
      const At send = from.sends[from.met++];
      if (TagOf(Of(send)) != TagOf(Of(at))) {
        throw Error(TextOf(plan_, at) + ": what comes is of " + TextOf(plan_, send) +
                    "; verify the plan");
      }
      PartnerOf(send) = at;
      PartnerOf(at) = send;
    });
    each_message([&](At at) {
      if (PartnerOf(at).rank < 0) {
        throw Error(TextOf(plan_, at) + ": its peer never receives it; verify the plan");
      }
    });
  }

  void FindReduces() {
    reduces_.resize(holders_.size());
    arrived_.resize(holders_.size());
    for (size_t s = 0; s < holders_.size(); ++s) {
      for (const int rank : holders_[s]) reduces_[s].push_back({rank});
    }
    std::vector<At> first(holders_.size());  // REDUCE of each stage
    for (int32_t rank = 0; rank < plan_.ranks; ++rank) {
      const Program& program = plan_.program(rank);
      for (uint32_t index = 0; index < program.size(); ++index) {
        if (WorkOf(program[index].op) != Work::kReduce) continue;
        const At at = {rank, index};
        const int32_t stage = program[index].stage;
        At* mine = nullptr;
        if (stage >= 0 && stage < plan_.stages) {
          for (At& holder : HoldersOf(stage)) {
            if (holder.rank == rank) mine = &holder;
          }
        }
        if (mine == nullptr) {
          throw Error(TextOf(plan_, at) + ": the rank does not hold the stage; verify the plan");
        }
        if (mine->index != At::kNone) {
          throw Error(TextOf(plan_, at) + ": a second one of the same stage; verify the plan");
        }
        *mine = at;
        At& of_stage = first[static_cast<size_t>(stage)];
        if (of_stage.rank < 0) of_stage = at;
      }
    }
    for (size_t s = 0; s < holders_.size(); ++s) {
      if (first[s].rank < 0) continue;
      for (const At holder : reduces_[s]) {
        if (holder.index != At::kNone) continue;
        throw Error(TextOf(plan_, first[s]) + ": rank " + std::to_string(holder.rank) +
                    " holds the stage too, and has no such instruction; verify the plan");
      }
    }
  }

  const std::vector<At>& ParticipantsOf(At at) {
    const Work work = WorkOf(Of(at).op);
    if (work == Work::kReduce) return HoldersOf(Of(at).stage);
    one_.assign(1, at);
    if (work == Work::kSend) one_.push_back(PartnerOf(at));
    return one_;
  }

  /// The rank has come to its next instructions: what waited for it alone is ready.
  void Enter(int32_t rank) {
    const Program& program = plan_.program(rank);
    State& state = StateOf(rank);
    if (state.begin == program.size()) return;
    state.end = static_cast<uint32_t>(GroupEnd(program, state.begin));
    state.left = state.end - state.begin;
    for (uint32_t index = state.begin; index < state.end; ++index) {
      const At at = {rank, index};
      const Instruction& i = program[index];
      if (IsMessage(i.op)) {
        const At partner = PartnerOf(at);
        if (Arrived(partner)) ready_.push_back(IsSend(i.op) ? at : partner);
      } else if (WorkOf(i.op) == Work::kReduce) {
        const auto stage = static_cast<size_t>(i.stage);
        if (++arrived_[stage] == holders_[stage].size()) ready_.push_back(at);
      } else {
        ready_.push_back(at);
      }
    }
  }

  /// The wait of one rank, where no rank can go on: where it is, and where the other will be.
  std::pair<At, At> Wait(int32_t rank) {
    const State& state = StateOf(rank);
    for (uint32_t index = state.begin; index < state.end; ++index) {
      const At at = {rank, index};
      if (IsMessage(Of(at).op)) {
        if (!Arrived(PartnerOf(at))) return {at, PartnerOf(at)};
        continue;
      }
      for (const At other : HoldersOf(Of(at).stage)) {
        if (!Arrived(other)) return {at, other};
      }
    }
    AssertFailed("a rank that waits for nothing goes on", __FILE__, __LINE__);
  }

  [[noreturn]] void ThrowCircle(int32_t rank) {
    std::vector<std::pair<At, At>> waits;
    std::vector<int32_t> seen(states_.size(), -1);  // where in `waits`
    while (seen[static_cast<size_t>(rank)] < 0) {
      seen[static_cast<size_t>(rank)] = static_cast<int32_t>(waits.size());
      waits.push_back(Wait(rank));
      rank = waits.back().second.rank;
    }
    std::string text = "the plan hangs: ";
    constexpr size_t kMostShown = 8;
    const auto first = static_cast<size_t>(seen[static_cast<size_t>(rank)]);
    for (size_t w = first; w < waits.size(); ++w) {
      if (w - first == kMostShown) {
        text += "; and " + std::to_string(waits.size() - w) + " more";
        break;
      }
      if (w > first) text += "; ";
      text += TextOf(plan_, waits[w].first) + " waits for " + TextOf(plan_, waits[w].second);
    }
    throw Error(text + "; verify the plan");
  }

  const Plan& plan_;
  const std::vector<std::vector<int>> holders_;
  std::vector<std::vector<At>> partners_;  // of messages, by rank and index
  std::vector<std::vector<At>> reduces_;   // by stage, in the order of its holders
  std::vector<size_t> arrived_;            // of those
  std::vector<State> states_;
  std::vector<At> ready_;  // in the order found; of a message the SEND
  std::vector<At> one_;
};

/// Which of the devices take part in a meeting of their ranks, and in which order.
struct Present {
  int replica, member;
  size_t order;  // of the rank in the meeting
  IssuePlace place;
};

/// True if `b`, the next in order, is posted together with `a`.
bool Together(Work work, const Present& a, const Present& b) {
  switch (work) {
    case Work::kSend:
    case Work::kRecv:
      return a.replica == b.replica && a.member == b.member;
    case Work::kAllToAll:
      return a.replica == b.replica;
    case Work::kReduce:
      return true;
    case Work::kCompute:
    case Work::kComponent:
    case Work::kStep:
    case Work::kOffload:
    case Work::kReload:
      break;
  }
  return false;
}

}  // namespace

size_t GroupEnd(const Program& program, size_t first) {
  size_t end = first + 1;
  if (program[first].group < 0 || !IsMessage(program[first].op)) return end;
  while (end < program.size() && program[end].group == program[first].group &&
         IsMessage(program[end].op)) {
    ++end;
  }
  return end;
}

IssueOrder::IssueOrder(const Plan& plan, std::span<const Device> devices) {
  std::vector<std::vector<Present>> here(plan.programs.size());
  for (uint32_t d = 0; d < devices.size(); ++d) {
    const Device& device = devices[d];
    CF_ASSERT(device.rank >= 0 && device.rank < plan.ranks);
    here[static_cast<size_t>(device.rank)].push_back({device.replica, device.member, 0, {d, 0}});
  }
  std::vector<Present> present;
  const auto visit = [&](const std::vector<At>& participants) {
    present.clear();
    for (size_t order = 0; order < participants.size(); ++order) {
      const At at = participants[order];
      for (Present device : here[static_cast<size_t>(at.rank)]) {
        device.order = order;
        device.place.index = at.index;
        present.push_back(device);
      }
    }
    if (present.empty()) return;
    std::sort(present.begin(), present.end(), [](const Present& a, const Present& b) {
      return std::tie(a.replica, a.member, a.order) < std::tie(b.replica, b.member, b.order);
    });
    const At first = participants.front();
    const Work work = WorkOf(plan.program(first.rank)[first.index].op);
    for (size_t p = 0; p < present.size(); ++p) {
      if (p > 0 && !Together(work, present[p - 1], present[p])) begins_.push_back(places_.size());
      places_.push_back(present[p].place);
    }
    begins_.push_back(places_.size());
  };
  const bool one_rank = std::all_of(devices.begin(), devices.end(), [&](const Device& device) {
    return device.rank == devices[0].rank;
  });
  if (one_rank && plan.ranks > 1 && !devices.empty()) {
    const int32_t rank = devices[0].rank;
    const size_t size = plan.program(rank).size();
    for (uint32_t index = 0; index < size; ++index) visit({{rank, index}});
    return;
  }
  ProgramOrder(plan).Walk(visit);
}

namespace {

/// A lane, and the peer of one that messages have to themselves.
using LaneKey = std::pair<Lane, int32_t>;

LaneKey KeyOf(const Instruction& i) {
  const Lane lane = LaneOf(i.op);
  return {lane, lane == Lane::kSend || lane == Lane::kRecv ? i.peer : -1};
}

std::string NameOf(Device device, LaneKey key) {
  std::string name = "replica " + std::to_string(device.replica) + " member " +
                     std::to_string(device.member) + " rank " + std::to_string(device.rank) + " " +
                     std::string(Name(key.first));
  if (key.second >= 0) name += " " + std::to_string(key.second);
  return name;
}

/// Issued together with others of its group, an instruction cannot wait for one of them.
void CheckWait(const Program& program, int rank, size_t index, int32_t on, size_t group_begin) {
  if (on >= 0 && static_cast<size_t>(on) < group_begin) return;
  throw Error("rank " + std::to_string(rank) + ", instruction " + std::to_string(index) + " (" +
              ToString(program[index]) + "): waits for " + std::to_string(on) +
              ", which is not issued before it; verify the plan");
}

}  // namespace

GpuLanes::GpuLanes(const Plan& plan, Device device, Gpu& gpu, int partition, int sms) {
  if (OffloadedCells(plan).any()) {
    throw Error(
        "this plan copies activations to the host (OFFLOAD), which only --device cpu does; compile "
        "it without `offload`");
  }
  const Program& program = plan.program(device.rank);
  std::map<LaneKey, uint32_t> numbers;
  const auto number = [&](LaneKey key) {
    const auto [at, is_new] = numbers.emplace(key, static_cast<uint32_t>(streams_.size()));
    if (is_new) {
      const Priority priority = key.first == Lane::kCompute ? Priority::kNormal : Priority::kHigh;
      streams_.push_back(gpu.NewStream(partition, priority, NameOf(device, key)));
      streams_.back().sms = sms;
    }
    return at->second;
  };
  number({Lane::kCompute, -1});
  for (const Instruction& i : program) lanes_.push_back(number(KeyOf(i)));

  events_.resize(program.size());
  size_t group_begin = 0, group_end = 0;
  for (size_t index = 0; index < program.size(); ++index) {
    if (index >= group_end) {
      group_begin = index;
      group_end = GroupEnd(program, index);
    }
    waits_begin_.push_back(waits_.size());
    const Instruction& i = program[index];
    for (int a = 0; a < i.after_count; ++a) {
      const int32_t on = i.after[static_cast<size_t>(a)];
      CheckWait(program, device.rank, index, on, group_begin);
      const auto other = static_cast<size_t>(on);
      if (lanes_[other] == lanes_[index]) continue;  // A stream keeps its order.
      waits_.push_back(on);
      if (events_[other] == nullptr) events_[other] = gpu.NewEvent();
    }
  }
  waits_begin_.push_back(waits_.size());
}

}  // namespace contraflow
