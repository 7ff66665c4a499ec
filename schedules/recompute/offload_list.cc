// Time goes on from one event to the next. A rank that has something to decide is woken: when its
// compute lane or its link is free again, when something has come, when a RELOAD is due.
//
// The program that is written on the way runs no later than what was decided (compiler/simulate): a
// RELOAD begins when what stands before it on the compute lane has ended and what leaves before it
// is gone; F waits for what leaves before it. So an OFFLOAD is written when it has ended, before
// the first that takes memory after that. A RELOAD that begins while something else runs is written
// before that, together with the OFFLOADs that it waited for; not while F runs, which would wait
// for these too: then it has only the room that there was when F began.

#include "schedules/recompute/offload_list.h"

#include <algorithm>
#include <limits>

#include "compiler/plan/memory_limit.h"

namespace contraflow {
namespace {

constexpr Time kNever = std::numeric_limits<Time>::max() / 4;

}  // namespace

OffloadList::OffloadList(const Plan& frame, const CostModel& costs,
                         const std::vector<int64_t>& limits)
    : frame_(frame), limits_(limits) {
  const MemoryLimit memory(costs);
  route_of_.resize(static_cast<size_t>(frame.microbatches));
  down_.resize(route_of_.size());
  up_.resize(route_of_.size());
  fresh_cells_.resize(static_cast<size_t>(frame.stages) * route_of_.size());
  fresh_ranks_.resize(static_cast<size_t>(frame.ranks));
  for (const Route& route : frame.routes) {
    for (const int m : route.microbatches) {
      route_of_[static_cast<size_t>(m)] = &route;
      std::vector<Time>&down = down_[static_cast<size_t>(m)], &up = up_[static_cast<size_t>(m)];
      Time to = 0, back = 0;
      for (int s = 0; s < frame.stages; ++s) {
        Cell& cell = fresh_cells_[static_cast<size_t>(At(s, m))];
        cell.name = CellOp(Op::F, s, m);
        cell.f = costs.Duration(cell.name);
        cell.b = costs.Duration(CellOp(Op::B, s, m));
        cell.w = costs.Duration(CellOp(Op::W, s, m));
        cell.copy = costs.Duration(CellOp(Op::OFFLOAD, s, m));
        cell.memory = memory.bytes() ? BytesOfCell(costs, s, false) : kOneActivation;
        cell.rank = route.ranks[static_cast<size_t>(s)];
        cell.input_at = s == 0 ? 0 : kNever;
        cell.gradient_at = kNever;
        const bool crosses = s > 0 && route.ranks[static_cast<size_t>(s) - 1] != cell.rank;
        const Time hop = crosses ? costs.comm.HopBetween(s - 1) : 0;
        to += hop + cell.f;
        back += hop + cell.b;
        down.push_back(to);
        up.push_back(back);
      }
    }
    for (int s = frame.stages; s-- > 0;) {
      fresh_ranks_[static_cast<size_t>(route.ranks[static_cast<size_t>(s)])].lines.push_back(
          {&route.microbatches, s, 0});
    }
  }
}

void OffloadList::Reset() {
  cells_ = fresh_cells_;
  ranks_ = fresh_ranks_;
  fronts_.assign(route_of_.size(), {});
  wakes_ = {};
  left_ = cells_.size();
  forced_ = false;
  makespan_ = 0;
  work_ = 0;
}

bool OffloadList::Run(const std::vector<OffloadRule>& rules) {
  rules_ = rules;
  Reset();
  for (int r = 0; r < frame_.ranks; ++r) Wake(0, r);
  Time now = 0;
  for (;;) {
    while (!wakes_.empty()) {
      const auto [time, r] = wakes_.top();
      wakes_.pop();
      now = time;
      Decide(r, now);
    }
    if (left_ == 0) return true;
    // Everyone waits: the first that can go on does, whatever its rule says.
    forced_ = true;
    for (int r = 0; r < frame_.ranks && wakes_.empty(); ++r) Decide(r, now);
    forced_ = false;
    if (wakes_.empty()) return false;
  }
}

std::vector<Program> OffloadList::programs() const {
  std::vector<Program> programs;
  for (const Rank& rank : ranks_) programs.push_back(rank.program);
  return programs;
}

void OffloadList::Decide(int r, Time now) {
  work_ += 1 + static_cast<int64_t>(ranks_[static_cast<size_t>(r)].open.size()) / 4;
  Finish(&ranks_[static_cast<size_t>(r)], now);
  StartLeaving(r, now);
  StartReturning(r, now);
  StartCompute(r, now);
  StartReturning(r, now);
}

void OffloadList::Finish(Rank* rank, Time now) {
  if (rank->running >= 0 && rank->op_end <= now) {
    Cell& cell = cells_[static_cast<size_t>(rank->running)];
    rank->held -= Given(rank->op, cell.memory, cell.memory);
    if (rank->op == Op::F) cell.where = Where::kHere;
    if (rank->op == Op::B) {
      cell.where = Where::kStash;
      rank->stashes.push_back(rank->running);
    }
    if (rank->op == Op::W) --left_;
    rank->running = -1;
    rank->freed = 0;
  }
  if (rank->leaving >= 0 && rank->leaving_end <= now) {
    Cell& cell = cells_[static_cast<size_t>(rank->leaving)];
    cell.where = Where::kAway;
    const int64_t given = Given(Op::OFFLOAD, cell.memory, cell.memory);
    rank->held -= given;
    if (rank->running >= 0 && rank->op == Op::F) rank->freed += given;
    rank->gone.push_back(rank->leaving);
    rank->leaving = -1;
  }
  if (rank->returning >= 0 && rank->returning_end <= now) {
    cells_[static_cast<size_t>(rank->returning)].where = Where::kBack;
    rank->returning = -1;
  }
}

// When the gradient of a cell comes, if nothing but its own way down and back holds it up.
Time OffloadList::Expected(int c, Time now) const {
  const Cell& cell = cells_[static_cast<size_t>(c)];
  if (cell.gradient_at != kNever) return cell.gradient_at;
  const auto m = static_cast<size_t>(cell.name.microbatch);
  const auto s = static_cast<size_t>(cell.name.stage);
  const Front& front = fronts_[m];
  const auto at = static_cast<size_t>(front.stage);
  const Time way = front.backward
                       ? up_[m][at] - up_[m][s] -
                             cells_[static_cast<size_t>(At(front.stage, cell.name.microbatch))].b +
                             cell.b
                       : down_[m].back() - down_[m][at] + up_[m].back() - up_[m][s];
  return std::max(front.end, now) + way;
}

void OffloadList::StartLeaving(int r, Time now) {
  Rank& rank = ranks_[static_cast<size_t>(r)];
  if (rank.leaving >= 0) return;
  int last = -1;
  Time latest = -1;
  for (const int c : rank.open) {
    if (cells_[static_cast<size_t>(c)].where != Where::kHere) continue;
    const Time expected = Expected(c, now);
    if (expected < latest) continue;
    latest = expected;
    last = c;
  }
  if (last < 0) return;
  int before = 0;
  for (const int c : rank.open) before += c != last && Expected(c, now) <= latest ? 1 : 0;
  Cell& cell = cells_[static_cast<size_t>(last)];
  if (!forced_ && (before < rules_[static_cast<size_t>(r)].kept || cell.gradient_at <= now)) return;
  cell.where = Where::kLeaving;
  rank.leaving = last;
  rank.leaving_end = now + cell.copy;
  Wake(rank.leaving_end, r);
}

void OffloadList::WriteGone(Rank* rank, size_t* place) {
  for (const int c : rank->gone) {
    Cell& cell = cells_[static_cast<size_t>(c)];
    cell.written = true;
    rank->program.insert(rank->program.begin() + static_cast<std::ptrdiff_t>((*place)++),
                         CellOp(Op::OFFLOAD, cell.name.stage, cell.name.microbatch));
  }
  rank->gone.clear();
}

void OffloadList::StartReturning(int r, Time now) {
  Rank& rank = ranks_[static_cast<size_t>(r)];
  if (rank.returning >= 0) return;
  const bool forward = rank.running >= 0 && rank.op == Op::F;
  int next = -1;
  Time first = kNever;
  for (const int c : rank.open) {
    if (cells_[static_cast<size_t>(c)].where != Where::kAway) continue;
    const Time expected = Expected(c, now);
    if (expected >= first) continue;
    first = expected;
    next = c;
  }
  if (next < 0) return;
  Cell& cell = cells_[static_cast<size_t>(next)];
  const int64_t taken = Taken(Op::RELOAD, cell.memory);
  if (rank.held + (forward ? rank.freed : 0) + taken > limits_[static_cast<size_t>(r)]) return;
  if (forward && !cell.written) return;
  const bool sure = forced_ || rules_[static_cast<size_t>(r)].sure;
  if (sure && cell.gradient_at == kNever) return;
  if (!forced_ && now < first - cell.copy * rules_[static_cast<size_t>(r)].lead / 4) return;
  cell.where = Where::kReturning;
  rank.held += taken;
  rank.returning = next;
  rank.returning_end = now + cell.copy;
  size_t place = rank.program.size() - (rank.running >= 0 ? 1 : 0);
  if (!forward) WriteGone(&rank, &place);
  rank.program.insert(rank.program.begin() + static_cast<std::ptrdiff_t>(place),
                      CellOp(Op::RELOAD, cell.name.stage, cell.name.microbatch));
  Wake(rank.returning_end, r);
}

void OffloadList::StartCompute(int r, Time now) {
  Rank& rank = ranks_[static_cast<size_t>(r)];
  if (rank.running >= 0) return;
  const OffloadRule& rule = rules_[static_cast<size_t>(r)];
  const auto stashes = static_cast<int>(rank.stashes.size());
  // The backward that can begin first, of those of which that is known.
  int back = -1;
  Time first = kNever;
  for (const int c : rank.open) {
    const Cell& cell = cells_[static_cast<size_t>(c)];
    const bool here = cell.where == Where::kHere || cell.where == Where::kBack;
    if (!here && cell.where != Where::kReturning) continue;
    if (cell.gradient_at == kNever) continue;
    const Time ready = std::max({now, cell.gradient_at, here ? now : rank.returning_end});
    if (ready >= first) continue;
    first = ready;
    back = c;
  }
  if (stashes >= rule.waiting && !forced_ && StartWeight(r, now, kNever)) return;
  if (back >= 0 && first <= now) return Start(r, Op::B, back, now);
  if (stashes >= rule.waiting_f && StartWeight(r, now, first)) return;
  if (StartForward(r, now, first)) return;
  StartWeight(r, now, first);
}

bool OffloadList::StartForward(int r, Time now, Time backward) {
  Rank& rank = ranks_[static_cast<size_t>(r)];
  const OffloadRule& rule = rules_[static_cast<size_t>(r)];
  if (!forced_ && static_cast<int>(rank.open.size()) >= rule.ahead) return false;
  for (Line& line : rank.lines) {
    if (line.next == line.microbatches->size()) continue;
    const int c = At(line.stage, (*line.microbatches)[line.next]);
    const Cell& cell = cells_[static_cast<size_t>(c)];
    if (cell.input_at > now) continue;
    int64_t need = rank.held + Taken(Op::F, cell.memory);
    if (need > limits_[static_cast<size_t>(r)]) continue;
    if (!forced_) {
      if (backward < now + cell.f * rule.patience / 4) continue;
      if (rule.reserves) {
        for (const int other : rank.open) {
          const Cell& away = cells_[static_cast<size_t>(other)];
          if (away.where != Where::kAway) continue;
          if (Expected(other, now) - away.copy < now + cell.f) {
            need += Taken(Op::RELOAD, away.memory);
            break;
          }
        }
        if (need > limits_[static_cast<size_t>(r)]) continue;
      }
    }
    ++line.next;
    Start(r, Op::F, c, now);
    return true;
  }
  return false;
}

bool OffloadList::StartWeight(int r, Time now, Time backward) {
  Rank& rank = ranks_[static_cast<size_t>(r)];
  if (rank.stashes.empty()) return false;
  const int c = rank.stashes.front();
  const Time wait = cells_[static_cast<size_t>(c)].w * rules_[static_cast<size_t>(r)].patience / 4;
  if (!forced_ && backward < now + wait) return false;
  rank.stashes.erase(rank.stashes.begin());
  Start(r, Op::W, c, now);
  return true;
}

void OffloadList::Start(int r, Op op, int c, Time now) {
  Rank& rank = ranks_[static_cast<size_t>(r)];
  Cell& cell = cells_[static_cast<size_t>(c)];
  const int s = cell.name.stage, m = cell.name.microbatch;
  if (op == Op::F) {
    size_t place = rank.program.size();
    WriteGone(&rank, &place);
  }
  rank.program.push_back(CellOp(op, s, m));
  rank.held += Taken(op, cell.memory);
  rank.running = c;
  rank.op = op;
  rank.freed = 0;
  rank.op_end = now + (op == Op::F ? cell.f : op == Op::B ? cell.b : cell.w);
  makespan_ = std::max(makespan_, rank.op_end);
  Wake(rank.op_end, r);
  if (op == Op::W) return;
  fronts_[static_cast<size_t>(m)] = {op == Op::B, s, rank.op_end};
  const std::vector<Time>&down = down_[static_cast<size_t>(m)], &up = up_[static_cast<size_t>(m)];
  if (op == Op::F) {
    cell.where = Where::kRuns;
    rank.open.push_back(c);
    if (s + 1 == frame_.stages) {
      cell.gradient_at = rank.op_end;
    } else {
      Cell& next = cells_[static_cast<size_t>(At(s + 1, m))];
      next.input_at =
          rank.op_end + down[static_cast<size_t>(s) + 1] - down[static_cast<size_t>(s)] - next.f;
      Wake(next.input_at, next.rank);
    }
  } else {
    std::erase(rank.open, c);
    if (s > 0) {
      Cell& next = cells_[static_cast<size_t>(At(s - 1, m))];
      next.gradient_at =
          rank.op_end + up[static_cast<size_t>(s)] - up[static_cast<size_t>(s) - 1] - cell.b;
      Wake(next.gradient_at, next.rank);
    }
  }
  // Distance in which RELOADs upstream are due.
  constexpr int kFar = 3;
  const int from = op == Op::B ? s - 1 : frame_.stages - 1;
  for (int far = 0; far < kFar && from - far >= 0; ++far) {
    const int other = At(from - far, m);
    const Cell& due = cells_[static_cast<size_t>(other)];
    if (due.where == Where::kNew || due.where == Where::kRuns) continue;
    const Time lead = due.copy * rules_[static_cast<size_t>(due.rank)].lead / 4;
    Wake(std::max(now, Expected(other, now) - lead), due.rank);
  }
}

}  // namespace contraflow
