// Tests that need a GPU: without one they are skipped, and say why; what tests there are can be
// asked anywhere.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <string>

#include "runtime/gpu/cuda_gpu.h"

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  bool asks = false;
  for (int i = 1; i < argc; ++i) asks = asks || std::string(argv[i]).rfind("--list-test-", 0) == 0;
  std::string why;
  if (!asks && contraflow::CudaDeviceCount(&why) == 0) {
    std::printf("SKIP: no GPU: %s\n", why.c_str());
    return kSkipped;
  }
  return doctest::Context(argc, argv).run();
}
