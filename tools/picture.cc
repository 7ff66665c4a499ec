#include "tools/picture.h"

#include <algorithm>

#include "compiler/error.h"
#include "tools/costs_option.h"
#include "tools/report_text.h"
#include "tools/table.h"

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

class Sides {
 public:
  explicit Sides(const Plan& plan) : several_routes_(plan.routes.size() > 1) {
    of_ = several_routes_ ? RouteOfMicrobatch(plan) : VisitOfStage(plan);
    if (several_routes_) {
      text_ = "micro-batches on route 1, which runs from rank " +
              std::to_string(plan.routes[1].ranks.front()) + " to rank " +
              std::to_string(plan.routes[1].ranks.back());
    } else if (*std::max_element(of_.begin(), of_.end()) > 0) {
      text_ = "the second stage of a rank";
    }
  }

  int Of(int stage, int microbatch) const {
    if (!several_routes_) return of_[static_cast<size_t>(stage)];
    return microbatch < 0 ? 0 : of_[static_cast<size_t>(microbatch)];
  }
  const std::string& text() const { return text_; }

 private:
  bool several_routes_;
  std::vector<int> of_;
  std::string text_;
};

std::vector<Part> PartsOf(const Instruction& i, const Sides& sides) {
  const Op op = i.op == Op::FB ? Op::F : i.op;
  std::vector<Part> parts = {{op, i.stage, i.microbatch, sides.Of(i.stage, i.microbatch)}};
  if (i.op == Op::FB) {
    parts.push_back(
        {Op::BW, i.back_stage, i.back_microbatch, sides.Of(i.back_stage, i.back_microbatch)});
  }
  return parts;
}

bool IsDrawn(const Instruction& instruction) {
  const Work work = WorkOf(instruction.op);
  return work == Work::kCompute || work == Work::kReduce || work == Work::kStep;
}

}  // namespace

Picture MakePicture(const Plan& plan, const CostModel& costs, const Simulation& simulation,
                    int rank) {
  Picture picture;
  picture.makespan = simulation.makespan;
  picture.unit = costs.unit;
  picture.title = DescribePlan(plan);
  picture.costs = DescribeCosts(costs);
  const auto& figures = simulation.ranks;
  const auto [low, high] = std::minmax_element(
      figures.begin(), figures.end(),
      [](const RankFigures& a, const RankFigures& b) { return a.bubble < b.bubble; });
  picture.figures = "makespan " + FormatWithUnit(simulation.makespan, costs.unit) +
                    ", bubble of a rank " + FormatRange(low->bubble, high->bubble, costs.unit) +
                    ", " + FormatPercent(simulation.bubble_ratio()) + " of the time of all ranks";
  const Sides sides(plan);
  picture.sides = sides.text();
  for (int r = 0; r < plan.ranks; ++r) {
    if (rank >= 0 && r != rank) continue;
    Picture::Row row = {r, {}};
    const Program& program = plan.programs[static_cast<size_t>(r)];
    for (size_t i = 0; i < program.size(); ++i) {
      const Span& span = simulation.timeline.ranks[static_cast<size_t>(r)][i];
      if (!IsDrawn(program[i]) || span.end == span.start) continue;
      row.boxes.push_back({span.start, span.end, static_cast<int>(i), PartsOf(program[i], sides)});
    }
    picture.rows.push_back(std::move(row));
  }
  return picture;
}

Time RulerStep(Time least) {
  for (Time power = 1;; power *= 10) {
    for (const Time digit : {1, 2, 5}) {
      if (digit * power >= least) return digit * power;
    }
    if (power > kMaxCost * 1000) return power;  // No makespan is that long.
  }
}

std::vector<Op> KindsIn(const Picture& picture) {
  constexpr Op kOrder[] = {Op::F, Op::B, Op::W, Op::BW, Op::FB, Op::REDUCE, Op::STEP};
  std::vector<Op> kinds;
  for (const Op op : kOrder) {
    const auto is = [op](const Box& box) {
      return (box.parts.size() > 1 ? Op::FB : box.parts[0].op) == op;
    };
    const bool occurs =
        std::any_of(picture.rows.begin(), picture.rows.end(), [&](const Picture::Row& row) {
          return std::any_of(row.boxes.begin(), row.boxes.end(), is);
        });
    if (occurs) kinds.push_back(op);
  }
  return kinds;
}

std::string_view Explain(Op op) {
  // Every other operation is no box.
  if (op == Op::F) return "forward";
  if (op == Op::B) return "backward for the input gradient only";
  if (op == Op::W) return "backward for the weight gradient only";
  if (op == Op::BW) return "full backward, both gradients";
  if (op == Op::FB) return "a forward overlapped with a full backward";
  if (op == Op::REDUCE) return "sum of a stage's gradients over its copies";
  CF_ASSERT(op == Op::STEP);
  return "optimizer step of a stage";
}

}  // namespace contraflow
