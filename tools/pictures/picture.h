#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/simulate/simulate.h"

namespace contraflow {

/// One chunk or component in a picture of a plan: what is written into a box.
struct Part {
  Op op = Op::F;  ///< any but FB and messages
  int stage = 0;
  int microbatch = -1;  ///< -1: REDUCE, STEP
  int side = 0;         ///< which route the micro-batch takes, else which stage of its rank it is
  int layer = -1;       ///< of a component
};

/// One box: an instruction that keeps the lane of its row busy.
struct Box {
  Time start = 0, end = 0;
  int index = 0;            ///< in the program of its rank
  std::vector<Part> parts;  ///< two for FB: the forward, then the full backward
};

/// What grid, SVG and HTML draw: the boxes of each rank, in time order; where the plan has
/// components, a row for its compute lane and below it one for its all-to-all lane.
struct Picture {
  struct Row {
    int rank;
    std::string_view lane;  ///< "compute" or "all-to-all"; "" where a rank has one row
    std::vector<Box> boxes;
  };
  std::vector<Row> rows;
  Time from = 0, to = 0;  ///< what is drawn; boxes may reach out of it
  Unit unit = Unit::kUnit;
  std::string title;    ///< the plan in one line
  std::string figures;  ///< makespan and bubbles in one line
  std::string costs;    ///< the costs in one line
  std::string sides;    ///< what side 1 is, "" where there is one side only
};

/// What a picture shows of a plan.
struct View {
  int rank = -1;                ///< -1: all
  Time from = 0;                ///< from here
  std::optional<Time> to = {};  ///< to here; default: the makespan
};

/// Throws Error if the times of a view are empty or reach over the makespan.
void CheckView(const View& view, Time makespan, Unit unit);

/// The picture of a sound plan. Throws Error as CheckView does.
Picture MakePicture(const Plan& plan, const CostModel& costs, const Simulation& simulation,
                    const View& view);

/// Number of boxes.
int64_t BoxCount(const Picture& picture);

/// Round times for a ruler whose marks are at least `least` apart: the step, 1, 2 or 5 times a
/// power of ten.
Time RulerStep(Time least);

/// The operation that stands for all of one colour: ATTN_F for MLP_F too, and so on; most stand for
/// themselves.
Op KindOf(Op op);

/// Kinds of work that occur, in the order F B W BW FB, components, REDUCE STEP; for legends.
std::vector<Op> KindsIn(const Picture& picture);

/// What a kind of work is, for legends.
std::string_view Explain(Op kind);

/// "AF" for ATTN_F, "DB" for DISPATCH_B; "" of what is no component.
std::string_view ShortName(Op op);

/// Of all operations of a kind: "AF MF"; its name where it is no component.
std::string_view ShortNames(Op kind);

}  // namespace contraflow
