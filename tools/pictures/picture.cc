#include "tools/pictures/picture.h"

#include <algorithm>
#include <set>

#include "compiler/plan/error.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

/// Which stage of its own rank a stage is: 0 for the first that the route visits there.
std::vector<int> VisitOfStage(const Plan& plan) {
  std::vector<int> visits(static_cast<size_t>(plan.ranks), 0), of_stage;
  for (const int rank : plan.routes[0].ranks) {
    of_stage.push_back(visits[static_cast<size_t>(rank)]++);
  }
  return of_stage;
}

std::vector<Part> PartsOf(const Instruction& i, const Sides& sides) {
  const Op op = i.op == Op::FB ? Op::F : i.op;
  std::vector<Part> parts = {{op, i.stage, i.microbatch, sides.Of(i.stage, i.microbatch), i.layer}};
  if (i.op == Op::FB) {
    parts.push_back(
        {Op::BW, i.back_stage, i.back_microbatch, sides.Of(i.back_stage, i.back_microbatch)});
  }
  return parts;
}

/// The rows of one rank, still empty.
std::vector<Picture::Row> RowsOf(int rank, bool components, bool offloads) {
  std::vector<Picture::Row> rows = {{rank, components ? "compute" : "", {}}};
  if (components) rows.push_back({rank, "all-to-all", {}});
  if (offloads) rows.push_back({rank, "offload", {}});
  if (offloads) rows.push_back({rank, "reload", {}});
  return rows;
}

/// The row of its rank that an instruction is drawn in, or -1.
int RowOf(Op op, bool components) {
  switch (WorkOf(op)) {
    case Work::kCompute:
    case Work::kComponent:
    case Work::kReduce:
    case Work::kStep:
      return 0;
    case Work::kAllToAll:
      return 1;
    case Work::kOffload:
      return components ? 2 : 1;
    case Work::kReload:
      return components ? 3 : 2;
    case Work::kSend:
    case Work::kRecv:
      break;
  }
  return -1;
}

std::string FiguresText(const Simulation& simulation, Unit unit, bool components) {
  const auto& ranks = simulation.ranks;
  const auto [low, high] = std::minmax_element(
      ranks.begin(), ranks.end(),
      [](const RankFigures& a, const RankFigures& b) { return a.bubble < b.bubble; });
  std::string text = "makespan " + FormatWithUnit(simulation.makespan, unit) + ", bubble " +
                     FormatRange(low->bubble, high->bubble, unit) + " per rank (" +
                     FormatPercent(simulation.bubble_ratio()) + " of all ranks' time)";
  if (!components) return text;
  const auto [least, most] = std::minmax_element(
      ranks.begin(), ranks.end(),
      [](const RankFigures& a, const RankFigures& b) { return a.exposed < b.exposed; });
  return text + "; exposed all-to-all " + FormatRange(least->exposed, most->exposed, unit) +
         " per rank";
}

}  // namespace

Sides::Sides(const Plan& plan) : several_routes_(plan.routes.size() > 1) {
  of_ = several_routes_ ? RouteOfMicrobatch(plan) : VisitOfStage(plan);
  count_ = several_routes_ ? static_cast<int>(plan.routes.size())
                           : *std::max_element(of_.begin(), of_.end()) + 1;
  if (several_routes_) {
    text_ = "micro-batches on route 1, which runs from rank " +
            std::to_string(plan.routes[1].ranks.front()) + " to rank " +
            std::to_string(plan.routes[1].ranks.back());
  } else if (count_ > 1) {
    text_ = count_ > 2 ? "every second stage of a rank" : "the second stage of a rank";
  }
}

View Within(View view, Time makespan, Unit unit) {
  const auto text = [&](Time time) { return FormatWithUnit(time, unit); };
  if (view.to && *view.to > makespan) view.to = makespan;
  const Time to = view.to.value_or(makespan);
  if (view.from > 0 && view.from >= makespan) {
    throw Error("`from`: must be before the makespan, " + text(makespan) + ", is " +
                text(view.from));
  }
  if (to < view.from || (to == view.from && view.to)) {
    throw Error("`to` (" + text(to) + ") must be after `from` (" + text(view.from) + ")");
  }
  return view;
}

Picture MakePicture(const Plan& plan, const CostModel& costs, const Simulation& simulation,
                    const View& asked) {
  const View view = Within(asked, simulation.makespan, costs.unit);
  Picture picture;
  picture.from = view.from;
  picture.to = view.to.value_or(simulation.makespan);
  picture.unit = costs.unit;
  picture.title = DescribePlan(plan);
  picture.costs = DescribeCosts(costs);
  const bool components = plan.layers > 0, offloads = OffloadedCells(plan).any();
  picture.figures = FiguresText(simulation, costs.unit, components);
  const Sides sides(plan);
  picture.sides = sides.text();
  picture.side_count = sides.count();
  for (int r = 0; r < plan.ranks; ++r) {
    if (view.rank >= 0 && r != view.rank) continue;
    std::vector<Picture::Row> rows = RowsOf(r, components, offloads);
    const Program& program = plan.program(r);
    for (size_t i = 0; i < program.size(); ++i) {
      const Span& span = simulation.timeline.ranks[static_cast<size_t>(r)][i];
      const int row = RowOf(program[i].op, components);
      const bool inside = span.end > picture.from && span.start < picture.to;
      if (row < 0 || span.end == span.start || !inside) continue;
      rows[static_cast<size_t>(row)].boxes.push_back(
          {span.start, span.end, static_cast<int>(i), PartsOf(program[i], sides)});
    }
    for (Picture::Row& row : rows) picture.rows.push_back(std::move(row));
  }
  return picture;
}

Picture MakeBrokenPicture(const Plan& plan, const CostModel& costs, const BrokenRun& broken,
                          const View& view) {
  Picture picture = MakePicture(plan, costs, broken.simulation, view);
  picture.figures =
      "not sound: " + Counted(static_cast<int64_t>(broken.findings.size()), "finding") +
      "; drawn up to where it stands, " + FormatWithUnit(broken.simulation.makespan, costs.unit);
  for (const StoppedRank& stop : broken.stops) {
    if (view.rank < 0 || stop.rank == view.rank) picture.stops.push_back(stop);
  }
  picture.findings = FindingLines(broken.findings, plan);
  std::set<std::pair<int, int>> wrong;
  for (const Finding& finding : broken.findings) wrong.emplace(finding.rank, finding.index);
  for (Picture::Row& row : picture.rows) {
    for (Box& box : row.boxes) box.wrong = wrong.contains({row.rank, box.index});
  }
  return picture;
}

int64_t BoxCount(const Picture& picture) {
  int64_t count = 0;
  for (const Picture::Row& row : picture.rows) count += static_cast<int64_t>(row.boxes.size());
  return count;
}

Time RulerStep(Time least) {
  for (Time power = 1;; power *= 10) {
    for (const Time digit : {1, 2, 5}) {
      if (digit * power >= least) return digit * power;
    }
    if (power > kMaxCost * 1000) return power;  // No makespan is that long.
  }
}

Op KindOf(Op op) {
  if (op == Op::MLP_F) return Op::ATTN_F;
  if (op == Op::MLP_B) return Op::ATTN_B;
  if (op == Op::MLP_W) return Op::ATTN_W;
  if (op == Op::COMBINE_F) return Op::DISPATCH_F;
  if (op == Op::MLP_R) return Op::ATTN_R;
  if (op == Op::COMBINE_R) return Op::DISPATCH_R;
  if (op == Op::DISPATCH_B) return Op::COMBINE_B;
  return op;
}

std::span<const Op> AllKinds() {
  static constexpr Op kOrder[] = {
      Op::F,         Op::B,      Op::W,      Op::BW,      Op::FB,         Op::R,
      Op::ATTN_F,    Op::ATTN_B, Op::ATTN_W, Op::ATTN_R,  Op::DISPATCH_F, Op::DISPATCH_R,
      Op::COMBINE_B, Op::REDUCE, Op::STEP,   Op::OFFLOAD, Op::RELOAD};
  return kOrder;
}

std::vector<Op> KindsIn(const Picture& picture) {
  uint64_t seen = 0;
  for (const Picture::Row& row : picture.rows) {
    for (const Box& box : row.boxes) {
      const Op kind = box.parts.size() > 1 ? Op::FB : KindOf(box.parts[0].op);
      seen |= uint64_t{1} << static_cast<int>(kind);
    }
  }
  std::vector<Op> kinds;
  for (const Op op : AllKinds()) {
    if ((seen >> static_cast<int>(op) & 1) != 0) kinds.push_back(op);
  }
  return kinds;
}

std::string_view Explain(Op kind) {
  // Every other operation is no box, or not the one that stands for its kind.
  if (kind == Op::F) return "forward";
  if (kind == Op::B) return "backward for the input gradient only";
  if (kind == Op::W) return "backward for the weight gradient only";
  if (kind == Op::BW) return "full backward, both gradients";
  if (kind == Op::FB) return "a forward overlapped with a full backward";
  if (kind == Op::R) return "recompute: the forward once more, from its stage input";
  if (kind == Op::ATTN_R) return "attention and experts, forward once more (recompute)";
  if (kind == Op::DISPATCH_R) return "all-to-all of the forward, once more (recompute)";
  if (kind == Op::ATTN_F) return "attention and experts (ATTN, MLP), forward";
  if (kind == Op::ATTN_B) return "their backward for the input gradient";
  if (kind == Op::ATTN_W) return "their backward for the weight gradient";
  if (kind == Op::DISPATCH_F) return "all-to-all of the forward: DISPATCH, COMBINE";
  if (kind == Op::COMBINE_B) return "all-to-all of the backward: COMBINE, then DISPATCH";
  if (kind == Op::OFFLOAD) return "what a forward keeps, to the memory of the host";
  if (kind == Op::RELOAD) return "back from the host, for the backward";
  if (kind == Op::REDUCE) return "sum of a stage's gradients over its copies";
  CF_ASSERT(kind == Op::STEP);
  return "optimizer step of a stage";
}

std::string_view ShortName(Op op) {
  if (op == Op::ATTN_F) return "AF";
  if (op == Op::DISPATCH_F) return "DF";
  if (op == Op::MLP_F) return "MF";
  if (op == Op::COMBINE_F) return "CF";
  if (op == Op::COMBINE_B) return "CB";
  if (op == Op::MLP_B) return "MB";
  if (op == Op::DISPATCH_B) return "DB";
  if (op == Op::ATTN_B) return "AB";
  if (op == Op::MLP_W) return "MW";
  if (op == Op::ATTN_W) return "AW";
  if (op == Op::ATTN_R) return "AR";
  if (op == Op::DISPATCH_R) return "DR";
  if (op == Op::MLP_R) return "MR";
  if (op == Op::COMBINE_R) return "CR";
  return "";
}

std::string_view ShortNames(Op kind) {
  if (kind == Op::ATTN_F) return "AF MF";
  if (kind == Op::ATTN_B) return "AB MB";
  if (kind == Op::ATTN_W) return "AW MW";
  if (kind == Op::DISPATCH_F) return "DF CF";
  if (kind == Op::COMBINE_B) return "CB DB";
  if (kind == Op::ATTN_R) return "AR MR";
  if (kind == Op::DISPATCH_R) return "DR CR";
  return Name(kind);
}

}  // namespace contraflow
