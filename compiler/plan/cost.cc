#include "compiler/plan/cost.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/recompute_cost.h"

namespace contraflow {
namespace {

struct UnitRow {
  std::string_view name;
  Time ticks;
};

constexpr UnitRow kUnits[] = {
    {"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}, {"unit", 1'000'000}};

double Scale(const CostModel& costs, int microbatch) {
  return costs.microbatch_scale.empty() ? 1.0
                                        : costs.microbatch_scale[static_cast<size_t>(microbatch)];
}

Time Scaled(Time cost, double scale) {
  return scale == 1.0 ? cost : static_cast<Time>(std::llround(static_cast<double>(cost) * scale));
}

/// Time of a copy of the activation of one cell to or from the host.
Time CopyTime(const CostModel& costs, int stage) {
  if (!costs.host) return 0;
  if (costs.host->bandwidth == 0 || !costs.memory) return costs.host->latency;
  const double units = static_cast<double>(costs.memory->activation(stage)) / costs.host->bandwidth;
  const double ticks = units * static_cast<double>(TicksPerUnit(costs.unit));
  return costs.host->latency + static_cast<Time>(std::llround(ticks));
}

}  // namespace

CostModel::CostModel() = default;
CostModel::CostModel(const CostModel&) = default;
CostModel::CostModel(CostModel&&) noexcept = default;
CostModel& CostModel::operator=(const CostModel&) = default;
CostModel& CostModel::operator=(CostModel&&) noexcept = default;
CostModel::~CostModel() = default;
bool CostModel::operator==(const CostModel&) const = default;

int64_t RestOf(const LayerCost& layer, const StateBytes& state) {
  const int64_t bytes = (layer.*state.of_layer).value_or(0),
                all = layer.parameter_bytes.value_or(0);
  const int64_t rest = layer.rest_bytes.value_or(0);
  if (!layer.rest_bytes || all == 0) return layer.rest_bytes ? bytes : 0;
  // The product would not fit.
  return bytes / all * rest + std::llround(static_cast<double>(bytes % all) *
                                           (static_cast<double>(rest) / static_cast<double>(all)));
}

Copies CopiesOf(const Parallel& parallel, int data_parallel) {
  const int64_t devices = int64_t{parallel.devices()} * data_parallel;
  return {devices / (int64_t{parallel.ep} * parallel.etp), devices / parallel.tp};
}

std::string_view Name(Overlap overlap) {
  return overlap == Overlap::kPublished ? "published" : "all";
}

Overlap ParseOverlap(std::string_view name) {
  for (const Overlap overlap : {Overlap::kPublished, Overlap::kAll}) {
    if (name == Name(overlap)) return overlap;
  }
  throw Error("unknown overlap \"" + std::string(name.substr(0, 32)) +
              "\"; it is published (F&B pairs only) or all");
}

std::string_view Name(Unit unit) {
  CF_ASSERT(static_cast<size_t>(unit) < std::size(kUnits));
  return kUnits[static_cast<size_t>(unit)].name;
}

Unit ParseUnit(std::string_view name) {
  for (size_t i = 0; i < std::size(kUnits); ++i) {
    if (kUnits[i].name == name) return static_cast<Unit>(i);
  }
  throw Error("unknown unit \"" + std::string(name.substr(0, 32)) +
              "\"; units are ns, us, ms, s, unit");
}

Time TicksPerUnit(Unit unit) {
  CF_ASSERT(static_cast<size_t>(unit) < std::size(kUnits));
  return kUnits[static_cast<size_t>(unit)].ticks;
}

Time ToTicks(double value, Unit unit, const std::string& place) {
  if (!std::isfinite(value)) throw Error(place + ": must be a finite number");
  const double ticks = value * static_cast<double>(TicksPerUnit(unit));
  if (value < 0) throw Error(place + ": must be >= 0");
  if (ticks > static_cast<double>(kMaxCost)) {
    throw Error(place + ": is larger than " + FormatTime(kMaxCost, unit) + " " +
                std::string(Name(unit)) + ", the largest cost there is");
  }
  const auto whole = static_cast<Time>(std::llround(ticks));
  if (value > 0 && whole == 0) {
    throw Error(place + ": is less than " + FormatTime(1, unit) + " " + std::string(Name(unit)) +
                ", the least time that counts: give that or more, or 0");
  }
  return whole;
}

double FromTicks(Time ticks, Unit unit) {
  return static_cast<double>(ticks) / static_cast<double>(TicksPerUnit(unit));
}

std::string FormatTime(Time ticks, Unit unit) {
  const Time per_unit = TicksPerUnit(unit);
  const bool negative = ticks < 0;
  const Time whole = ticks / per_unit;
  Time fraction = ticks % per_unit;
  if (negative) fraction = -fraction;
  // -0.5 has the whole part 0, which carries no sign.
  std::string text = (negative && whole == 0 ? "-" : "") + std::to_string(whole);
  if (fraction > 0) {
    std::string digits = std::to_string(per_unit + fraction).substr(1);
    digits.erase(digits.find_last_not_of('0') + 1);
    text += "." + digits;
  }
  return text;
}

Time MoeCost::Of(Op op, int layer) const {
  for (const ComponentCost& component : kComponentCosts) {
    if (component.op != op) continue;
    const std::vector<Time>& times = this->*component.times;
    CF_ASSERT(times.size() == 1 || static_cast<size_t>(layer) < times.size());
    return times.size() == 1 ? times.front() : times[static_cast<size_t>(layer)];
  }
  CF_ASSERT(false && "not a component");
  return 0;
}

Time SerialSum(const MoeCost& cost) {
  Time sum = 0;
  for (int layer = 0; layer < cost.layers_per_stage; ++layer) {
    for (const ComponentCost& component : kComponentCosts) sum += cost.Of(component.op, layer);
  }
  return sum;
}

Time TypicalComponent(const CostModel& costs) {
  Time sum = 0;
  int64_t count = 0;
  const auto add = [&](const MoeCost& moe) {
    sum += SerialSum(moe);
    for (int l = 0; l < moe.layers_per_stage; ++l) {
      count += std::ranges::count_if(
          kComponentCosts, [&](const ComponentCost& c) { return Has(moe.KindOf(l), c.op); });
    }
  };
  if (costs.moe) add(*costs.moe);
  for (const MoeCost& moe : costs.stage_moe) add(moe);
  return sum / count;
}

bool CountsBytes(const CostModel& costs) {
  return MemoryLimit(costs).bytes() ||
         std::any_of(costs.layers.begin(), costs.layers.end(),
                     [](const LayerCost& layer) { return layer.activation_bytes > 0; });
}

bool CostModel::by_layer() const { return !layers.empty() || !partition.empty(); }

bool CostModel::unlike_microbatches() const {
  return std::ranges::any_of(microbatch_scale,
                             [&](double scale) { return scale != microbatch_scale[0]; });
}

bool CostModel::uniform() const {
  const auto same = [](const auto& list) {
    return std::all_of(list.begin(), list.end(), [&](const auto& x) { return x == list.front(); });
  };
  return same(stages) && same(stage_moe) && same(microbatch_scale);
}

Time CostModel::Duration(const Instruction& i) const {
  const double scale = i.microbatch >= 0 ? Scale(*this, i.microbatch) : 1.0;
  const StageCost& cost = stage(i.stage);
  if (i.op == Op::F) return Scaled(cost.f, scale);
  if (i.op == Op::B) return Scaled(cost.b, scale);
  if (i.op == Op::W) return Scaled(cost.w, scale);
  if (i.op == Op::R) return Scaled(RecomputeTime(*this, i.stage, ExtentOf(i)), scale);
  if (i.op == Op::BW) return Scaled(cost.bw, scale);
  if (i.op == Op::FB) {
    const StageCost& back = stage(i.back_stage);
    const double back_scale = Scale(*this, i.back_microbatch);
    const Time f = Scaled(cost.f, scale);
    const Time bw = Scaled(back.bw, back_scale);
    const Time saving = std::min(Scaled(cost.f + cost.bw - cost.fb, scale),
                                 Scaled(back.f + back.bw - back.fb, back_scale));
    // An overlapped pair cannot end before the longer of its two chains.
    return std::max({f, Scaled(back.b, back_scale), f + bw - saving});
  }
  if (i.op == Op::REDUCE) return cost.reduce;
  if (i.op == Op::STEP) return cost.step;
  if (IsHostCopy(i.op)) return CopyTime(*this, i.stage);
  CF_ASSERT(components() && OperandsOf(i.op) == Operands::kLayer);
  return Scaled(moe_of(i.stage).Of(Repeated(i.op), i.layer), scale);
}

int CostModel::LayerCount() const {
  return std::accumulate(layers.begin(), layers.end(), 0,
                         [](int sum, const LayerCost& layer) { return sum + layer.repeat; });
}

void CommCost::SetBytes(const std::vector<int64_t>& between, Unit unit) {
  sizes.clear();
  if (between.empty()) return;
  const auto ticks = static_cast<double>(TicksPerUnit(unit));
  for (const int64_t each : between) {
    const double units = exclusive() ? static_cast<double>(each) / bandwidth : 0;
    sizes.push_back({each, static_cast<Time>(std::llround(units * ticks))});
  }
  const auto [least, most] = std::ranges::minmax(sizes, {}, &MessageSize::bytes);
  bytes = least.bytes;
  occupancy = least.occupancy;
  if (least == most) sizes.clear();
}

MessageSize CommCost::SizeBetween(int s) const {
  if (sizes.empty()) return {bytes, occupancy};
  return sizes[std::min(static_cast<size_t>(std::max(s, 0)), sizes.size() - 1)];
}

int CommCost::PairOf(const Instruction& message) {
  const bool to_next = message.op == Op::SEND_F || message.op == Op::RECV_B;
  return to_next ? message.stage : message.stage - 1;
}

MessageSize CommCost::SizeOf(const Instruction& message) const {
  return SizeBetween(PairOf(message));
}

MessageSize CommCost::Largest() const {
  if (sizes.empty()) return {bytes, occupancy};
  return std::ranges::max(sizes, {}, &MessageSize::bytes);
}

CostModel UniformCosts(Time f, Time b, Time w, Time comm) {
  CostModel costs;
  costs.stages = {{.f = f, .b = b, .w = w, .bw = b + w, .fb = f + b + w}};
  costs.comm.latency = comm;
  return costs;
}

int64_t MemoryCost::ActivationOfAll(int stages) const {
  if (activation_of.empty()) return activation_bytes * stages;
  return std::accumulate(activation_of.begin(), activation_of.end(), int64_t{0});
}

std::string MemoryKeys(const CostModel& costs, std::initializer_list<std::string_view> keys) {
  const bool by_layer = costs.by_layer();
  std::string text;
  for (const std::string_view key : keys) {
    if (!text.empty()) text += by_layer ? " and " : ", ";
    // A stage takes in what the layer before it puts out.
    const bool input = by_layer && key == "input_bytes";
    text += "\"" + std::string(input ? "output_bytes" : key) + (by_layer ? "\"" : "\": ..");
  }
  return by_layer ? text + " in \"layers\"" : "\"memory\": {" + text + "}";
}

}  // namespace contraflow
