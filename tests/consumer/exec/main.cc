// Plans how one process issues a plan to a GPU, and divides the GPU for it where there is one.

#include <contraflow/contraflow.h>
#include <contraflow/exec.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

int main() {
  using namespace contraflow;
  Spec spec;
  spec.schedule = "dualpipe";
  spec.ranks = 4;
  spec.microbatches = 8;
  spec.costs = UniformCosts(1'000'000, 1'000'000, 1'000'000);
  const Plan plan = Compile(spec);
  const std::vector<Device> devices = AllDevices(plan);
  const IssueOrder order(plan, devices);
  size_t issued = 0, instructions = 0;
  for (size_t point = 0; point < order.size(); ++point) issued += order[point].size();
  for (const Program& program : plan.programs) instructions += program.size();
  const SmBudget budget = BudgetOf(132, static_cast<int>(devices.size()), UseOf(plan));
  std::string why;
  if (CudaDeviceCount(&why) > 0) {
    const std::unique_ptr<Gpu> gpu = NewCudaGpu(0);
    gpu->Partition(budget.partitions, budget.sms);
    const gpu::Stream stream = gpu->NewStream(0, Priority::kNormal, "links");
    const VirtualLinks links(plan, budget, *gpu, {&stream, 1});
    why = gpu->name();
  }
  std::printf("%zu of %zu instructions over %zu edges, %d SMs a rank; %s\n", issued, instructions,
              EdgesOf(plan).size(), budget.sms, why.c_str());
  return issued == instructions ? 0 : 1;
}
