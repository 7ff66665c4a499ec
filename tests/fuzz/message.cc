// Any bytes are what another process of the job sends, or an Error: its facts, the record of its
// step, what it says while the job meets, and frames of its connection. Nothing that they claim is
// written to, or asked for, beyond what is there.

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/launch/door.h"
#include "runtime/launch/link.h"
#include "runtime/launch/process_run.h"

namespace contraflow {
namespace {

/// Both ends of a connection, into one of which the bytes were written, as far as they fit.
Stream Sent(std::string_view bytes) {
  int ends[2];
  CF_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  const Socket there(ends[1]);
  static_cast<void>(send(there.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
  return Stream(Socket(ends[0]));
}

void Check(std::string_view bytes) {
  try {
    const auto facts = ReadFacts(bytes);
    CF_ASSERT(WriteFacts(facts) == bytes);
    const auto name = [](int process) { return std::to_string(process); };
    CF_ASSERT(Disagreement(std::array{facts, facts}, name).empty());
  } catch (const Error&) {
  }
  try {
    ReadDeviceStep(bytes);
  } catch (const Error&) {
  }
  try {
    Stream stream = Sent(bytes);
    for (int said = 0; said < 64; ++said) {
      CF_ASSERT(Hear(&stream, Clock::now()).text.size() <= bytes.size());
    }
  } catch (const Error&) {
  }
  size_t talked = 0;
  Link link(1, Sent(bytes), [&](int, uint8_t, const std::string& text) { talked += text.size(); });
  // It reads at least a byte a time until its end.
  for (size_t reads = 0; link.open() && reads <= bytes.size(); ++reads) link.Read();
  CF_ASSERT(!link.open() && talked <= bytes.size());
}

}  // namespace
}  // namespace contraflow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  contraflow::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
