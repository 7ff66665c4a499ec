#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/simulate/simulate.h"
#include "tools/report/report.h"
#include "tools/report/standstill.h"

namespace contraflow {

/// One chunk or component in a picture of a plan, with the label of its box.
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
  bool wrong = false;       ///< a finding is about it
};

/// Subject of grid and SVG: the boxes of each rank, in time order; where the plan has components, a
/// row for its compute lane and below it one for its all-to-all lane.
struct Picture {
  struct Row {
    int rank;
    std::string_view lane;  ///< "compute" or "all-to-all"; "" where a rank has one row
    std::vector<Box> boxes;
  };
  std::vector<Row> rows;
  Time from = 0, to = 0;  ///< range drawn; boxes may reach out of it
  Unit unit = Unit::kUnit;
  std::string title;    ///< the plan in one line
  std::string heading;  ///< above it where there are several pictures; "": none
  std::string figures;  ///< makespan and bubbles in one line
  std::string costs;    ///< the costs in one line
  std::string sides;    ///< name of side 1, "" if there is one side only
  int side_count = 1;
  std::vector<StoppedRank> stops;     ///< of a plan that is not sound
  std::vector<std::string> findings;  ///< of that, the first
};

/// Which side the work of a plan is on: the route of its micro-batch, else which stage of its rank
/// its stage is. The plan must outlive it.
class Sides {
 public:
  explicit Sides(const Plan& plan);

  int Of(int stage, int microbatch) const {
    if (!several_routes_) return of_[static_cast<size_t>(stage)];
    return microbatch < 0 ? 0 : of_[static_cast<size_t>(microbatch)];
  }
  /// Meaning of side 1, or of the sides; "" where there is one only.
  const std::string& text() const { return text_; }
  int count() const { return count_; }

 private:
  bool several_routes_;
  std::vector<int> of_;  // by micro-batch or stage
  std::string text_;
  int count_ = 1;
};

/// Part of a plan that a picture shows.
struct View {
  int rank = -1;                ///< -1: all
  Time from = 0;                ///< from here
  std::optional<Time> to = {};  ///< to here; default: the makespan
};

/// A view no longer than the step. Throws Error if nothing of that is in it.
View Within(View view, Time makespan, Unit unit);

/// The picture of a sound plan. Throws Error as Within does.
Picture MakePicture(const Plan& plan, const CostModel& costs, const Simulation& simulation,
                    const View& view);

/// Makes the picture of a plan that is not sound, up to where it stands, with its findings.
Picture MakeBrokenPicture(const Plan& plan, const CostModel& costs, const BrokenRun& broken,
                          const View& view);

/// Number of boxes.
int64_t BoxCount(const Picture& picture);

/// Round times for a ruler whose marks are at least `least` apart: the step, 1, 2 or 5 times a
/// power of ten.
Time RulerStep(Time least);

/// How many sides have colours of their own; then they begin again.
inline constexpr int kSideColors = 8;
/// The colour (0xrrggbb) of a kind of work (KindOf) on one of this many sides.
uint32_t ColorOf(Op kind, int side, int sides);
/// "#ffd166"
std::string ColorText(uint32_t color);

/// The operation that stands for all of one colour: ATTN_F for MLP_F too, and so on; most stand for
/// themselves.
Op KindOf(Op op);

/// All kinds of work, in the order of legends.
std::span<const Op> AllKinds();

/// Kinds of work that occur, in the order F B W BW FB, components, REDUCE STEP; for legends.
std::vector<Op> KindsIn(const Picture& picture);

/// Meaning of a kind of work, for legends.
std::string_view Explain(Op kind);

/// "AF" for ATTN_F, "DB" for DISPATCH_B; "" of what is no component.
std::string_view ShortName(Op op);

/// Names of all operations of a kind: "AF MF"; its name where it is no component.
std::string_view ShortNames(Op kind);

/// How a grid is drawn.
struct GridStyle {
  int width = 100;     ///< columns of a line; longer pictures go on in another band below
  bool color = false;  ///< kinds of work by ANSI colours, else by letters
};

/// Limits of GridStyle::width.
inline constexpr int kMinGridWidth = 40;
inline constexpr int kMaxGridWidth = 10'000;

/// The picture known from the papers as text: one row a rank (with components one a lane), time
/// from left to right, boxes with micro-batch numbers. The scale is the smallest at which every
/// number fits in its box, unless that takes more than a few bands; then boxes too narrow for their
/// number show their kind only.
std::string DrawGrid(const Picture& picture, const GridStyle& style);

/// Limits of the width of an SVG drawing, in pixels.
inline constexpr int kMinSvgWidth = 200;
inline constexpr int kMaxSvgWidth = 100'000;

/// Draws a self-contained SVG, `width` pixels wide. Every box has a tooltip with its instruction
/// and times. Every label has room by default, as far as the drawing stays below 4,000.
std::string DrawSvg(const Picture& picture, std::optional<int> width = std::nullopt);

/// Draws pictures of one unit, one above the other on one axis of time, below a title unless that
/// is empty.
std::string DrawSvg(std::span<const Picture> pictures, const std::string& title,
                    std::optional<int> width = std::nullopt);

/// Most instructions of a plan that WriteDot takes: Graphviz takes minutes for these.
inline constexpr int64_t kMaxDotInstructions = 10'000;

/// A plan as a graph for Graphviz: a cluster a rank with its instructions, chained in issue order
/// (with lanes, in the order of each), `after` dotted, and an edge for each message, from SEND to
/// RECV, or at level compute from what makes a value to what takes it on another rank. The copies
/// of a stage are joined by dashed lines between their REDUCE. Same plan, same bytes. Throws Error
/// for plans of more than kMaxDotInstructions.
std::string WriteDot(const Plan& plan);

/// A plan as text: what it is, and the program of each rank in the view, one instruction a line
/// with its predicted times, then where its values lie. Without a simulation (the plan is not
/// sound) there are no times, and all instructions are shown.
std::string WriteListing(const Plan& plan, const CostModel& costs, const Simulation* simulation,
                         const View& view);

}  // namespace contraflow
