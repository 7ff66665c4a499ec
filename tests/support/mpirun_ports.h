#pragma once

#include <string>

namespace contraflow {

/// Where mpirun is to listen, as OMPI_MCA_oob_tcp_dynamic_ipv4_ports and .._ipv6_ports have it: at
/// a port that the system hands out to nobody. At another it may follow a process that was killed,
/// and prints a line for each who still looks for that one there. Tests at the same time must
/// differ in `which`; ports that the system hands out do, and never share the result.
inline std::string MpirunPorts(int which) { return std::to_string(1'500 + which % 31'000); }

}  // namespace contraflow
