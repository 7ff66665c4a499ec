#pragma once

// The execution core: gives the programs of a plan to GPUs in one proven order, with backends of
// your own (GpuBackend), over links inside one GPU (VirtualLinks) or NCCL (NcclLinks). Others write
// #include <contraflow/exec.h> and link contraflow::exec; for NCCL itself (NcclLibrary), also
// contraflow::nccl.

#include "runtime/core/devices.h"
#include "runtime/core/rank_order.h"
#include "runtime/exec/cuda_gpu.h"
#include "runtime/exec/gpu.h"
#include "runtime/exec/issue_order.h"
#include "runtime/exec/issuer.h"
#include "runtime/exec/links.h"
#include "runtime/exec/step_watch.h"
#include "runtime/nccl/library.h"
#include "runtime/nccl/links.h"
