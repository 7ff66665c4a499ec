// Plans of measured costs during their steps: the default model, trained by threads of this
// process.
//
// A round: the costs of the layers are measured while zb-1p runs on two ranks; each schedule is
// compiled for them, with the layers where it wants them, predicted, and run. "predict": as many
// ranks as that, each with a core of its own; costs are measured anew before each schedule, as
// machines drift. "predict-same": in addition, costs are measured while the plan itself runs.
// "predict-padded": more ranks than cores; every instruction lasts as long as the plan's costs say,
// asleep, while a tiny model of as many layers computes, so that no rank waits for a core.
//
// Figures of a round are those of its median step, and all figures printed are medians over rounds.
// "replayed": each step simulated with the times of its own instructions, against the same step,
// the mean of all. Times are of the wall clock: give it a machine to itself or, where that cannot
// be, a real-time priority (chrt -f 10).

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/simulate/simulate.h"
#include "runtime/host/backend.h"
#include "runtime/launch/threaded_run.h"
#include "runtime/model/dataset.h"
#include "runtime/transport/thread_transport.h"
#include "schedules/compile.h"
#include "schedules/partition/stages.h"
#include "tools/bench/bench.h"
#include "tools/contraflow-run/calibration.h"
#include "tools/contraflow-run/layer_times.h"
#include "tools/contraflow-run/times.h"

namespace contraflow {
namespace {

/// The last one in the memory of 1F1B: where more activations are under way than caches hold, all
/// instructions take longer than they were measured to.
constexpr const char* kSchedules[] = {"1f1b", "zb-1p", "dualpipe", "auto", "auto 1x"};
constexpr int kOwnCores = 2, kLayers = 8;

/// Makes the work of another backend last as long as the costs say, asleep.
class PaddedBackend : public Backend {
 public:
  PaddedBackend(const CostModel& costs, Backend& inner) : costs_(costs), inner_(inner) {}

  void BeginStep(int step) override { inner_.BeginStep(step); }
  void Compute(const Instruction& instruction) override {
    Last(costs_.Duration(instruction), [&] { inner_.Compute(instruction); });
  }
  std::span<std::byte> Outgoing(const Instruction& send) override { return inner_.Outgoing(send); }
  void Sent(const Instruction& send) override { inner_.Sent(send); }
  std::span<std::byte> Incoming(const Instruction& receive) override {
    return inner_.Incoming(receive);
  }
  std::span<float> Gradients(int stage) override { return inner_.Gradients(stage); }
  void OptimizerStep(int stage) override {
    Last(costs_.stage(stage).step, [&] { inner_.OptimizerStep(stage); });
  }

 private:
  template <typename Work>
  void Last(Time duration, const Work& work) {
    const Clock::time_point end = Clock::now() + std::chrono::nanoseconds(duration);
    work();
    // A sleeper wakes up late.
    std::this_thread::sleep_until(end - std::chrono::microseconds(200));
    while (Clock::now() < end) std::this_thread::yield();
  }

  const CostModel& costs_;
  Backend& inner_;
};

/// A training that was measured.
struct Trained {
  std::vector<Timeline> steps;  // without the first, which touches memory
  CostModel costs;              // of the layers
};

Trained Train(const Plan& plan, int steps, bool padded) {
  Model model = ReadModel(padded ? "tiny" : "default");
  model.layers = kLayers;
  model = FitModel(model, plan.stages);
  if (plan.costs) model.partition = PartitionOf(model, plan.costs->partition);
  const Dataset dataset = ReadDataset("", model);
  ThreadNetwork network(plan.ranks, 1, 1, {});
  std::vector<std::unique_ptr<HostBackend>> backends;
  std::vector<std::unique_ptr<PaddedBackend>> pads;
  std::vector<Worker> workers;
  for (const Device& device : AllDevices(plan)) {
    Transport& transport = network.At(device);
    backends.push_back(std::make_unique<HostBackend>(plan, model, dataset, 1, device, transport));
    Backend* backend = backends.back().get();
    if (padded) {
      backend = pads.emplace_back(std::make_unique<PaddedBackend>(*plan.costs, *backend)).get();
    }
    workers.push_back({device, backend, &transport});
  }
  Launch launch(plan, workers);
  launch.Step(1);
  for (const auto& backend : backends) backend->MeasureParts();
  Trained trained;
  Calibration calibration(plan);
  for (int step = 2; step < steps + 2; ++step) {
    launch.Step(step);
    Timeline timeline = {true, Unit::kMicroseconds, {}};
    for (size_t w = 0; w < workers.size(); ++w) timeline.ranks.push_back(launch.spans(w));
    calibration.Add(timeline);
    trained.steps.push_back(std::move(timeline));
    // Linux stops what runs at a real-time priority for more than 95 % of a second.
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::vector<RankParts> parts;
  for (size_t w = 0; w < workers.size(); ++w) {
    parts.push_back({static_cast<int>(w), backends[w]->MeasureParts()->times()});
  }
  trained.costs = CostsByLayer(plan, model, parts, calibration);
  return trained;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Spec SpecOf(const std::string& name, int ranks, const CostModel& costs) {
  const size_t space = name.find(' ');
  Spec spec = BenchSpec(name.substr(0, space), ranks, std::max(8, 2 * ranks), costs);
  spec.partition.emplace();
  if (space != std::string::npos) spec.memory_limit = MemoryLimitOf(spec, name.substr(space + 1));
  return spec;
}

/// The plan for costs of layers; where that would put the embedding or the head into a stage of its
/// own, which is not run, one of blocks spread evenly.
Plan Planned(const std::string& schedule, int ranks, const CostModel& costs) {
  Spec spec = SpecOf(schedule, ranks, costs);
  Plan plan = Compile(spec);
  const Partition& found = plan.costs->partition;
  if (found.front() > 1 && found.back() > 1) return plan;
  Partition blocks = EvenPartition(kLayers, static_cast<int>(found.size()));
  ++blocks.front();
  ++blocks.back();
  spec.partition = {.kind = PartitionChoice::Kind::kList, .layers = blocks};
  return Compile(spec);
}

/// Measures the costs of the layers on ranks with cores of their own.
CostModel MeasuredCosts(int steps) {
  CostModel unit = UniformCosts(1'000, 1'000, 1'000);
  unit.unit = Unit::kMicroseconds;
  Spec spec = SpecOf("zb-1p", kOwnCores, unit);
  spec.partition.reset();
  return Train(Compile(spec), steps, false).costs;
}

/// Neither REDUCE nor messages are padded, and those of a tiny model take next to nothing.
CostModel OfComputeAlone(CostModel costs) {
  costs.comm = {};
  for (LayerCost& layer : costs.layers) layer.cost.reduce = 0;
  return costs;
}

/// Figures of a run of a plan.
std::vector<double> FiguresOf(const Plan& plan, const Trained& trained) {
  const Simulation simulation = Simulate(plan, *plan.costs);
  std::vector<double> makespans, bubbles;
  Replay replay(plan, false);
  RunTimes all;
  Calibration calibration(plan);
  for (const Timeline& step : trained.steps) {
    RunTimes times;
    AddTimes(plan, step, &times);
    AddTimes(plan, step, &all);
    replay.Add(step);
    calibration.Add(step);
    makespans.push_back(static_cast<double>(times.makespan(plan)) * 1e-6);
    bubbles.push_back(100 * times.bubble_ratio());
  }
  const RunTimes again = replay.Times(calibration.CostsOfPlan());
  const double predicted = static_cast<double>(simulation.makespan) * 1e-6,
               measured = Median(makespans), bubble = Median(bubbles);
  return {predicted,
          measured,
          std::ranges::min(makespans),
          100 * (predicted / measured - 1),
          100 * simulation.bubble_ratio(),
          bubble,
          100 * simulation.bubble_ratio() - bubble,
          Percent(again.makespan(plan), all.makespan(plan)),
          100 * (again.bubble_ratio() - all.bubble_ratio())};
}

void Measure(const BenchOptions& options, std::string_view suite, int ranks, BenchTable* table) {
  constexpr size_t kCount = std::size(kSchedules);
  const bool padded = suite == "predict-padded";
  std::vector<std::vector<double>> rounds[kCount];
  Partition partitions[kCount];
  CostModel costs;
  for (int round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < kCount; ++i) {
      if (i == 0 || !padded) costs = MeasuredCosts(options.steps);
      if (padded) costs = OfComputeAlone(costs);
      Plan plan = Planned(kSchedules[i], ranks, costs);
      if (suite == "predict-same") {
        const CostModel same = Train(plan, options.steps, false).costs;
        plan.costs = OnRanks(StagesForPlan(same, plan, Overlap::kAll), plan);
      }
      rounds[i].push_back(FiguresOf(plan, Train(plan, options.steps, padded)));
      partitions[i] = plan.costs->partition;
    }
  }
  for (size_t i = 0; i < kCount; ++i) {
    std::vector<double> medians;
    for (size_t figure = 0; figure < rounds[i].front().size(); ++figure) {
      std::vector<double> of_rounds;
      for (const std::vector<double>& round : rounds[i]) of_rounds.push_back(round[figure]);
      medians.push_back(Median(of_rounds));
    }
    table->Add({}, std::string(kSchedules[i]) + " P=" + std::to_string(ranks), medians,
               FormatPartition(partitions[i]));
  }
}

}  // namespace

void RunPredict(const BenchOptions& options, std::string_view suite) {
  BenchTable table({{"predicted ms"},
                    {"measured"},
                    {"best"},
                    {"off %"},
                    {"bubble %"},
                    {"measured"},
                    {"off"},
                    {"replayed %"},
                    {"bubble"}},
                   true);
  if (suite == "predict-padded") {
    for (const int ranks : {4, 8}) Measure(options, suite, ranks, &table);
  } else {
    Measure(options, suite, kOwnCores, &table);
  }
}

}  // namespace contraflow
