#pragma once

#include <string>

namespace contraflow {

/// Ports at which mpirun is to listen, as OMPI_MCA_oob_tcp_dynamic_ipv4_ports and .._ipv6_ports
/// have it: at a port that the system hands out to nobody. At another it may follow a process that
/// was killed, and prints a line for each who still looks for that one there. Tests at the same
/// time must differ in `which` modulo 5,000, as ports that are held (FreePort) do, or in `first`.
inline std::string MpirunPorts(int which, int first = 16'000) {
  return std::to_string(first + which % 5'000);
}

}  // namespace contraflow
