#pragma once

// Contraflow as a library: make a plan, prove it, simulate it, bound it, compare schedules, read
// and write plans, costs and traces. Others write #include <contraflow/contraflow.h> and link
// contraflow::compiler; <contraflow/runtime.h> executes plans.
//
// A wrong input is an Error, whose text names the place, the fault there and the right form.
// Everything is a value or a function of values: nothing is kept between calls, and several threads
// may call anything at once.

#include "compiler/bound/bound.h"
#include "compiler/files/cost_io.h"
#include "compiler/files/plan_io.h"
#include "compiler/files/profiles.h"
#include "compiler/files/trace.h"
#include "compiler/lower/lower.h"
#include "compiler/plan/cost.h"
#include "compiler/plan/error.h"
#include "compiler/plan/instruction.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"
#include "compiler/plan/timeline.h"
#include "compiler/simulate/idle.h"
#include "compiler/simulate/sensitivity.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/compare.h"
#include "schedules/compile.h"
#include "schedules/front.h"
#include "schedules/registry.h"
#include "schedules/report.h"
