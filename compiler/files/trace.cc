#include "compiler/files/trace.h"

#include <algorithm>
#include <charconv>
#include <tuple>
#include <vector>

#include "compiler/files/trace_tracks.h"
#include "compiler/plan/error.h"

namespace contraflow {
namespace {

std::string_view Category(Op op) {
  constexpr std::string_view kNames[] = {"compute", "send", "receive", "component", "all-to-all",
                                         "reduce",  "step", "offload", "reload"};
  return kNames[static_cast<size_t>(WorkOf(op))];
}

void Append(std::string* out, const char* key, int64_t value) {
  char buffer[24];
  out->append(key).append(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
}

/// Microseconds, as the format wants them; a tick is a nanosecond, and of the abstract unit the
/// millionth part, so that one unit is shown as a millisecond.
void AppendTime(std::string* out, const char* key, Time ticks) {
  out->append(key).append(FormatTime(ticks, Unit::kMicroseconds));
}

/// One side of a message, ordered so that both sides of one stand side by side.
struct End {
  bool forward;
  int stage, microbatch, from, to;  ///< the producing stage; sender and receiver
  int64_t index;                    ///< in the sender's or receiver's program

  auto Edge() const { return std::tie(forward, stage, microbatch, from, to); }
};

/// Sends and receives of the whole plan, in order of their edges and there in program order.
struct Ends {
  std::vector<End> sends, receives;
};

Ends CollectEnds(const Plan& plan) {
  Ends ends;
  for (size_t r = 0; r < plan.programs.size(); ++r) {
    const int rank = static_cast<int>(r);
    for (size_t k = 0; k < plan.programs[r].size(); ++k) {
      const Instruction& i = plan.programs[r][k];
      const auto index = static_cast<int64_t>(k);
      if (i.op == Op::SEND_F || i.op == Op::SEND_B) {
        ends.sends.push_back({i.op == Op::SEND_F, i.stage, i.microbatch, rank, i.peer, index});
      } else if (i.op == Op::RECV_F || i.op == Op::RECV_B) {
        // A receive is named after the stage that takes the message.
        const int producer = i.op == Op::RECV_F ? i.stage - 1 : i.stage + 1;
        ends.receives.push_back({i.op == Op::RECV_F, producer, i.microbatch, i.peer, rank, index});
      }
    }
  }
  const auto before = [](const End& a, const End& b) {
    return std::tuple_cat(a.Edge(), std::tie(a.index)) <
           std::tuple_cat(b.Edge(), std::tie(b.index));
  };
  std::sort(ends.sends.begin(), ends.sends.end(), before);
  std::sort(ends.receives.begin(), ends.receives.end(), before);
  return ends;
}

/// True where the costs say what each instruction takes.
bool CostsFit(const Plan& plan) {
  try {
    CheckCosts(*plan.costs, plan.stages, plan.microbatches);
    CheckLayers(plan, *plan.costs);
    CheckHostCost(*plan.costs, OffloadedCells(plan).any());
  } catch (const Error&) {
    return false;
  }
  return true;
}

class Trace {
 public:
  Trace(const Plan& plan, const Timeline& timeline) : plan_(plan), timeline_(timeline) {
    for (size_t r = 0; r < plan.programs.size(); ++r) {
      tracks_.push_back(TracksOf(plan.programs[r], timeline.ranks[r]));
    }
    costs_fit_ = plan.costs && CostsFit(plan);
  }

  std::string Write() {
    out_ = "{\n\"displayTimeUnit\": \"ms\",\n";
    WriteHead();
    out_ += "\"traceEvents\": [";
    for (size_t r = 0; r < plan_.programs.size(); ++r) WriteRank(r);
    WriteArrows();
    out_ += "\n]\n}\n";
    return std::move(out_);
  }

 private:
  void WriteHead() {
    const Unit unit = plan_.costs ? plan_.costs->unit : Unit::kUnit;
    out_ += "\"otherData\": {\"schedule\": \"" + plan_.schedule + "\", \"level\": \"";
    out_ += Name(plan_.level);
    Append(&out_, "\", \"ranks\": ", plan_.ranks);
    Append(&out_, ", \"stages\": ", plan_.stages);
    Append(&out_, ", \"microbatches\": ", plan_.microbatches);
    Append(&out_, ", \"data_parallel\": ", plan_.data_parallel);
    Append(&out_, ", \"expert_parallel\": ", plan_.expert_parallel);
    out_ += ", \"times\": \"";
    out_ += timeline_.measured ? "measured" : "predicted";
    out_ += "\", \"unit\": \"";
    out_ += Name(unit);
    out_ += "\", \"makespan\": " + FormatTime(Makespan(timeline_), unit) + "},\n";
  }

  void Begin(const char* phase, size_t rank, int thread) {
    out_ += first_ ? "\n{\"ph\": \"" : ",\n{\"ph\": \"";
    first_ = false;
    out_ += phase;
    Append(&out_, "\", \"pid\": ", static_cast<int64_t>(rank));
    Append(&out_, ", \"tid\": ", thread);
  }

  void WriteName(const char* what, size_t rank, int thread, const std::string& name) {
    Begin("M", rank, thread);
    out_ += ", \"name\": \"";
    out_ += what;
    out_ += "\", \"args\": {\"name\": \"" + name + "\"}}";
  }

  void WriteRank(size_t rank) {
    const Program& program = plan_.programs[rank];
    const std::vector<Span>& spans = timeline_.ranks[rank];
    const RankTracks& tracks = tracks_[rank];
    WriteName("process_name", rank, 0, "rank " + std::to_string(rank));
    for (size_t track = 0; track < tracks.names.size(); ++track) {
      const int thread = static_cast<int>(track);
      WriteName("thread_name", rank, thread, tracks.names[track]);
      Begin("M", rank, thread);
      Append(&out_, ", \"name\": \"thread_sort_index\", \"args\": {\"sort_index\": ", thread);
      out_ += "}}";
    }
    for (size_t i = 0; i < program.size(); ++i) {
      const Span span = DrawnSpan(program[i], spans[i]);
      Begin("X", rank, tracks.of[i]);
      AppendTime(&out_, ", \"ts\": ", span.start);
      AppendTime(&out_, ", \"dur\": ", span.end - span.start);
      out_ += ", \"name\": \"";
      out_ += Name(program[i].op);
      out_ += "\", \"cat\": \"";
      out_ += Category(program[i].op);
      Append(&out_, "\", \"args\": {\"index\": ", static_cast<int64_t>(i));
      WriteOperands(program[i]);
      out_ += "}}";
    }
    const char* const held = HoldsBytes(plan_) ? "bytes" : "activations";
    for (const HeldSample& sample : HeldOver(plan_, rank, spans)) {
      Begin("C", rank, 0);
      AppendTime(&out_, ", \"ts\": ", sample.time);
      out_ += ", \"name\": \"activations\", \"args\": {\"";
      out_ += held;
      Append(&out_, "\": ", sample.held);
      out_ += "}}";
    }
  }

  void WriteOperands(const Instruction& i) {
    const auto add = [&](const char* key, int value) {
      if (value >= 0) Append(&out_, key, value);
    };
    add(", \"stage\": ", i.stage);
    add(", \"microbatch\": ", i.microbatch);
    add(", \"layer\": ", i.layer);
    add(", \"back_stage\": ", i.back_stage);
    add(", \"back_microbatch\": ", i.back_microbatch);
    add(", \"peer\": ", i.peer);
    if (!costs_fit_ || (OperandsOf(i.op) == Operands::kLayer && plan_.layers == 0)) return;
    const CostModel& costs = *plan_.costs;
    const Time cost =
        IsMessage(i.op) ? costs.comm.latency + costs.comm.SizeOf(i).occupancy : costs.Duration(i);
    out_ += ", \"cost\": " + FormatTime(cost, costs.unit);
  }

  void WriteArrows() {
    const Ends ends = CollectEnds(plan_);
    size_t r = 0;
    int64_t id = 0;
    for (const End& send : ends.sends) {
      while (r < ends.receives.size() && ends.receives[r].Edge() < send.Edge()) ++r;
      if (r == ends.receives.size() || ends.receives[r].Edge() != send.Edge()) continue;
      WriteArrow(send, ends.receives[r++], id++);
    }
  }

  Span DrawnAt(int rank, int64_t index) const {
    const auto r = static_cast<size_t>(rank), i = static_cast<size_t>(index);
    return DrawnSpan(plan_.programs[r][i], timeline_.ranks[r][i]);
  }

  void WriteArrow(const End& send, const End& receive, int64_t id) {
    const Span from = DrawnAt(send.from, send.index), to = DrawnAt(receive.to, receive.index);
    // A receive may be posted before its send starts; arrows point forward in time, and end within
    // a slice, whose end is no part of it.
    const Time arrival = std::clamp(from.start, to.start, std::max(to.start, to.end - 1));
    const char* const name = send.forward ? "activation" : "gradient";
    WriteArrowEnd("s", send.from, send.index, from.start, name, id);
    WriteArrowEnd("f", receive.to, receive.index, arrival, name, id);
  }

  void WriteArrowEnd(const char* phase, int rank, int64_t index, Time time, const char* name,
                     int64_t id) {
    const auto r = static_cast<size_t>(rank);
    Begin(phase, r, tracks_[r].of[static_cast<size_t>(index)]);
    AppendTime(&out_, ", \"ts\": ", time);
    Append(&out_, ", \"id\": ", id);
    // Bound to the slice around it, not to the next one.
    if (*phase == 'f') out_ += ", \"bp\": \"e\"";
    out_ += ", \"name\": \"";
    out_ += name;
    out_ += "\", \"cat\": \"message\"}";
  }

  const Plan& plan_;
  const Timeline& timeline_;
  std::vector<RankTracks> tracks_;
  bool costs_fit_ = false;  ///< the plan has costs, of its own shape
  std::string out_;
  bool first_ = true;
};

}  // namespace

std::string WriteTrace(const Plan& plan, const Timeline& timeline) {
  CF_ASSERT(timeline.ranks.size() == plan.programs.size());
  return Trace(plan, timeline).Write();
}

}  // namespace contraflow
