#pragma once

#include <string>

namespace contraflow {

/// Where mpirun is to listen, as OMPI_MCA_oob_tcp_dynamic_ipv4_ports and .._ipv6_ports have it: at
/// ports that the system hands out to nobody. At another it may follow a process that was killed,
/// and prints a line for each who still looks for that one there. Tests at the same time should
/// differ in `which`, their process for instance; of four ports one is enough.
inline std::string MpirunPorts(int which) {
  const int first = 30'000 + 4 * (which % 350);
  return std::to_string(first) + "-" + std::to_string(first + 3);
}

}  // namespace contraflow
