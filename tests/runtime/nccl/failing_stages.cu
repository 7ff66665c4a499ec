// Stages for a test: those of the example, but for the third backward of stage 1, which fails.

#include <cstdio>

#define contraflow_stages example_stages
#include "runtime/stages/example/mlp_stages.cu"
#undef contraflow_stages

namespace {

const char* FailingBackward(void* self, const contraflow_cell* cell, void* stream) {
  static int calls = 0;
  if (At(self).copy.stage != 1 || ++calls != 3) return BackwardInput(self, cell, stream);
  std::fprintf(stderr, "the third backward\n");
  return "the third backward fails";
}

}  // namespace

extern "C" const contraflow_stage_api* contraflow_stages(void) {
  static contraflow_stage_api stages = *example_stages();
  stages.backward_input = FailingBackward;
  return &stages;
}
