#pragma once

#include "compiler/plan/schedule.h"

namespace contraflow {

/// The rows of the schedule table, one a file.
extern const Schedule kGpipe;
extern const Schedule kOneFOneB;
extern const Schedule kInterleaved;
extern const Schedule kZb1p;
extern const Schedule kZb2p;
extern const Schedule kZbV;
extern const Schedule kVHalf;
extern const Schedule kVMin;
extern const Schedule kChimera;
extern const Schedule kDualPipe;
extern const Schedule kDualPipeV;
extern const Schedule kAuto;

}  // namespace contraflow
