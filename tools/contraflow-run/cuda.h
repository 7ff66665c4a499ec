#pragma once

#include "tools/contraflow-run/options.h"

namespace contraflow {

/// As Train (tools/run_train.h), for --device cuda. CUDA's libraries take half a second to load, so
/// they are in a program of their own, contraflow-run-cuda, which this one becomes; `argv` is for
/// that. Throws Error, before anything is written, if this build has no CUDA or the machine no
/// device.
int TrainOnCuda(RunOptions options, char** argv);

}  // namespace contraflow
