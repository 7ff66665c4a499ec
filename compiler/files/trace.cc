#include "compiler/files/trace.h"

#include <algorithm>
#include <charconv>
#include <tuple>
#include <vector>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

/// Lanes of one rank, as thread numbers: compute, all-to-all, then one for each peer and direction,
/// and behind those REDUCE where it has a lane of its own (below that it is drawn with compute).
constexpr int kComputeThread = 0;
constexpr int kAllToAllThread = 1;
constexpr int kFirstPeerThread = 2;

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

class Trace {
 public:
  Trace(const Plan& plan, const Timeline& timeline) : plan_(plan), timeline_(timeline) {}

  std::string Write() {
    out_ = "{\n\"displayTimeUnit\": \"ms\",\n\"traceEvents\": [";
    for (size_t r = 0; r < plan_.programs.size(); ++r) WriteRank(r);
    WriteArrows();
    out_ += "\n]\n}\n";
    return std::move(out_);
  }

 private:
  int ReduceThread() const { return kFirstPeerThread + 2 * plan_.ranks; }
  int OffloadThread() const { return ReduceThread() + 1; }
  int ReloadThread() const { return ReduceThread() + 2; }

  int ThreadOf(const Instruction& i) const {
    const Work work = WorkOf(i.op);
    if (work == Work::kSend) return kFirstPeerThread + 2 * i.peer;
    if (work == Work::kRecv) return kFirstPeerThread + 2 * i.peer + 1;
    if (work == Work::kOffload) return OffloadThread();
    if (work == Work::kReload) return ReloadThread();
    if (i.lane == Lane::kReduce) return ReduceThread();
    return work == Work::kAllToAll || i.lane == Lane::kAllToAll ? kAllToAllThread : kComputeThread;
  }

  std::string ThreadName(int thread) const {
    if (thread == kComputeThread) return "compute";
    if (thread == kAllToAllThread) return "all-to-all";
    if (thread == ReduceThread()) return "reduce";
    if (thread == OffloadThread()) return "offload";
    if (thread == ReloadThread()) return "reload";
    const std::string peer = std::to_string((thread - kFirstPeerThread) / 2);
    return (thread - kFirstPeerThread) % 2 == 0 ? "send to " + peer : "receive from " + peer;
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
    CF_ASSERT(program.size() == spans.size());
    WriteName("process_name", rank, 0, "rank " + std::to_string(rank));
    std::vector<int> threads;
    for (const Instruction& i : program) {
      const int thread = ThreadOf(i);
      if (threads.empty() || threads.back() != thread) threads.push_back(thread);
    }
    std::sort(threads.begin(), threads.end());
    threads.erase(std::unique(threads.begin(), threads.end()), threads.end());
    for (const int thread : threads) WriteName("thread_name", rank, thread, ThreadName(thread));
    for (size_t i = 0; i < program.size(); ++i) {
      Begin("X", rank, ThreadOf(program[i]));
      AppendTime(&out_, ", \"ts\": ", spans[i].start);
      AppendTime(&out_, ", \"dur\": ", spans[i].end - spans[i].start);
      out_ += ", \"name\": \"";
      out_ += ToString(program[i]);
      out_ += "\", \"cat\": \"";
      out_ += Category(program[i].op);
      Append(&out_, "\", \"args\": {\"index\": ", static_cast<int64_t>(i));
      out_ += "}}";
    }
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

  const Span& SpanOf(int rank, int64_t index) const {
    return timeline_.ranks[static_cast<size_t>(rank)][static_cast<size_t>(index)];
  }

  void WriteArrow(const End& send, const End& receive, int64_t id) {
    const Span& from = SpanOf(send.from, send.index);
    const Span& to = SpanOf(receive.to, receive.index);
    // A receive may be posted before its send starts; arrows point forward in time.
    const Time arrival = std::clamp(from.start, to.start, std::max(to.start, to.end));
    const char* const name = send.forward ? "activation" : "gradient";
    WriteArrowEnd("s", static_cast<size_t>(send.from), kFirstPeerThread + 2 * send.to, from.start,
                  name, id);
    WriteArrowEnd("f", static_cast<size_t>(receive.to), kFirstPeerThread + 2 * receive.from + 1,
                  arrival, name, id);
  }

  void WriteArrowEnd(const char* phase, size_t rank, int thread, Time time, const char* name,
                     int64_t id) {
    Begin(phase, rank, thread);
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
  std::string out_;
  bool first_ = true;
};

}  // namespace

std::string WriteTrace(const Plan& plan, const Timeline& timeline) {
  CF_ASSERT(timeline.ranks.size() == plan.programs.size());
  return Trace(plan, timeline).Write();
}

}  // namespace contraflow
