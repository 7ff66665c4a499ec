#include "tools/bench/cpu_time.h"

#include <sys/resource.h>

namespace contraflow {

double CpuMilliseconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec) * 1e3 +
         static_cast<double>(usage.ru_utime.tv_usec) / 1e3;
}

}  // namespace contraflow
