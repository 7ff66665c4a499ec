#pragma once

// Execution of plans: a training on the threads of this process (ThreadedRun), of stages of your
// own too (CustomRun), or one rank's program walked by an Executor with a Backend and a Transport
// of your own. Others write #include <contraflow/runtime.h> and link contraflow::runtime;
// <contraflow/contraflow.h> makes the plans.

#include "runtime/core/executor.h"
#include "runtime/core/transport.h"
#include "runtime/host/run.h"
#include "runtime/launch/custom_run.h"
#include "runtime/launch/threaded_run.h"
#include "runtime/model/dataset.h"
#include "runtime/model/model.h"
#include "runtime/transport/thread_transport.h"
