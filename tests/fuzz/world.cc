// Any lines NAME=VALUE are what launchers say in the environment, or an Error: then a process has a
// place among those of its job.

#include "runtime/launch/world.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <sstream>
#include <string>

#include "compiler/plan/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace contraflow;
  std::istringstream lines(std::string(reinterpret_cast<const char*>(data), size));
  std::map<std::string, std::string> variables;
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find('=');
    if (equals != std::string::npos) variables[line.substr(0, equals)] = line.substr(equals + 1);
  }
  try {
    const World world = ReadWorld([&](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
    CF_ASSERT(world.size > 0 && world.rank >= 0 && world.rank < world.size);
    CF_ASSERT(world.local_rank >= -1 && world.local_rank < world.size);
    CF_ASSERT(world.master_port >= 0 && world.master_port <= 65535);
  } catch (const Error&) {
  }
  return 0;
}
