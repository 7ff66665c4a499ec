#pragma once

namespace contraflow {

/// User time of this process in milliseconds: what a benchmark reports, since machines are shared.
double CpuMilliseconds();

}  // namespace contraflow
