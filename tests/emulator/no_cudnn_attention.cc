// Stands for cuDNN where it is not: in the emulator.

#include "kernels/attention/attention.h"

namespace contraflow::gpu {

std::unique_ptr<AttentionEngine> CudnnAttention(const AttentionShape&) { return nullptr; }

}  // namespace contraflow::gpu
