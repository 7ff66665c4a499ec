// The eight phases, per rank, with a = ahead and h = from the end. 0 and 1 are the streams; "0|1"
// is the overlapped pair of a forward of stream 0 and a full backward of stream 1:
//
//   1  2a     x  F0
//   2  (h+1)  x  F0 F1
//   3  a      x  B1 W1 F1
//   4  pairs  x  0|1  1|0             (the middle ranks begin with F0 BW1 1|0)
//   5  a      x  BW1  1|0
//   6  (h+1)  x  BW1 BW0              the last h+1 of these backwards leave their W for later
//   7  a      x  W  B0
//   8  (h+1)  x  W
//
// Weight gradients that were left for later are taken first in, first out over both streams.

#include "schedules/published/bidirectional.h"

#include <algorithm>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

struct Emitter {
  const BidirectionalRank& rank;
  Program program;
  std::deque<Instruction> pending_w;
  int forwards[2] = {0, 0};
  int backwards[2] = {0, 0};

  int NextForward(int stream) { return rank.first[stream] + forwards[stream]++; }
  int NextBackward(int stream) { return rank.first[stream] + backwards[stream]++; }

  void F(int stream) { program.push_back(CellOp(Op::F, rank.stage[stream], NextForward(stream))); }
  void BW(int stream) {
    program.push_back(CellOp(Op::BW, rank.stage[stream], NextBackward(stream)));
  }
  void B(int stream) {
    const int m = NextBackward(stream);
    program.push_back(CellOp(Op::B, rank.stage[stream], m));
    pending_w.push_back(CellOp(Op::W, rank.stage[stream], m));
  }
  void W() {
    CF_ASSERT(!pending_w.empty());
    program.push_back(pending_w.front());
    pending_w.pop_front();
  }
  void FB(int forward, int backward) {
    const int f = NextForward(forward);
    program.push_back(Pair(rank.stage[forward], f, rank.stage[backward], NextBackward(backward)));
  }
};

}  // namespace

BidirectionalRank RankOfV(int ranks, int microbatches, int rank) {
  return {.stage = {rank, 2 * ranks - 1 - rank},
          .first = {0, 0},
          .ahead = ranks - 1 - rank,
          .from_end = rank,
          .pairs = microbatches - 2 * ranks + rank + 1,
          .middle = rank == ranks - 1};
}

Program BidirectionalProgram(const BidirectionalRank& rank) {
  Emitter emit{.rank = rank, .program = {}, .pending_w = {}};
  const int a = rank.ahead, h = rank.from_end;
  for (int i = 0; i < 2 * a; ++i) emit.F(0);
  for (int i = 0; i < h + 1; ++i) {
    emit.F(0);
    emit.F(1);
  }
  for (int i = 0; i < a; ++i) {
    emit.B(1);
    emit.W();
    emit.F(1);
  }
  for (int i = 0; i < rank.pairs; ++i) {
    if (i == 0 && rank.middle) {
      emit.F(0);
      emit.BW(1);
    } else {
      emit.FB(0, 1);
    }
    emit.FB(1, 0);
  }
  for (int i = 0; i < a; ++i) {
    emit.BW(1);
    emit.FB(1, 0);
  }
  for (int i = 0; i < 2 * (h + 1); ++i) {
    const int stream = i % 2 == 0 ? 1 : 0;
    if (i >= h + 1) {
      emit.B(stream);
    } else {
      emit.BW(stream);
    }
  }
  for (int i = 0; i < a; ++i) {
    emit.W();
    emit.B(0);
  }
  for (int i = 0; i < h + 1; ++i) emit.W();
  CF_ASSERT(emit.pending_w.empty());
  return std::move(emit.program);
}

std::vector<Time> BidirectionalBubble(const StageCost& c, int k, const std::vector<int>& from_end) {
  // Derived with bw = b + w and an fb between its longer part and the sum of both.
  const Time full_b = c.b + c.w;
  if (c.bw != full_b || c.fb < std::max(c.f, full_b) || c.fb > c.f + full_b) return {};
  const Time saving = c.f + full_b - c.fb;
  const Time fill = k > 0 ? std::max(k * c.f, k * c.b - c.f) : 0;
  const Time middle = k * (c.fb - c.w - std::min(c.w, c.b)) + fill;
  std::vector<Time> bubbles;
  // Ranks further out own fewer overlapped pairs for the same makespan, hence idle less.
  for (const int h : from_end) bubbles.push_back(middle - saving * std::max(0, k - 1 - h));
  return bubbles;
}

}  // namespace contraflow
