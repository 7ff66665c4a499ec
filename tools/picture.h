#pragma once

#include <string>
#include <vector>

#include "compiler/plan.h"
#include "compiler/simulate.h"

namespace contraflow {

/// One chunk of work in a picture of a plan: what is written into a box.
struct Part {
  Op op = Op::F;  ///< F B W BW REDUCE STEP
  int stage = 0;
  int microbatch = -1;  ///< -1: REDUCE, STEP
  int side = 0;         ///< which route the micro-batch takes, else which stage of its rank it is
};

/// One box: an instruction that keeps the compute lane busy.
struct Box {
  Time start = 0, end = 0;
  int index = 0;            ///< in the program of its rank
  std::vector<Part> parts;  ///< two for FB: the forward, then the full backward
};

/// What grid, SVG and HTML draw: the boxes of each rank, in time order.
struct Picture {
  struct Row {
    int rank;
    std::vector<Box> boxes;
  };
  std::vector<Row> rows;
  Time makespan = 0;
  Unit unit = Unit::kUnit;
  std::string title;    ///< the plan in one line
  std::string figures;  ///< makespan and bubbles in one line
  std::string costs;    ///< the costs in one line
  std::string sides;    ///< what side 1 is, "" where there is one side only
};

/// The picture of a sound plan; of one rank only if `rank` >= 0.
Picture MakePicture(const Plan& plan, const CostModel& costs, const Simulation& simulation,
                    int rank);

/// Round times for a ruler whose marks are at least `least` apart: the step, 1, 2 or 5 times a
/// power of ten.
Time RulerStep(Time least);

/// Kinds of work that occur, in the order F B W BW FB REDUCE STEP; for legends.
std::vector<Op> KindsIn(const Picture& picture);

/// What a kind of work is, for legends.
std::string_view Explain(Op op);

}  // namespace contraflow
