// One process of a meeting, for tests on several machines or network namespaces:
//   meeting_main <rank> <size> <host> <port> <secret> <timeout in ms>
// meets the others, exchanges a number over each connection, and prints where they lead.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <string>

#include "compiler/plan/error.h"
#include "runtime/launch/meeting.h"

namespace {

using contraflow::Clock;
using contraflow::Error;

void Exchange(contraflow::Socket& stream, int self, int other) {
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(20);
  const int sent = self * 1000 + other;
  int got = 0;
  stream.WriteAll(std::as_bytes(std::span(&sent, 1)), deadline);
  stream.ReadAll(std::as_writable_bytes(std::span(&got, 1)), deadline);
  if (got != other * 1000 + self) {
    throw Error("rank " + std::to_string(other) + " sent " + std::to_string(got));
  }
}

void Run(char** words) {
  contraflow::MeetingPoint point;
  point.rank = std::atoi(words[1]);
  point.size = std::atoi(words[2]);
  point.address = {words[3], std::atoi(words[4])};
  point.secret = words[5];
  point.timeout = std::chrono::milliseconds(std::atoi(words[6]));
  contraflow::Membership members = contraflow::Meet(point);
  std::string text = "met";
  for (int other = 0; other < point.size; ++other) {
    contraflow::Socket& stream = members.links[static_cast<size_t>(other)];
    if (!stream) continue;
    Exchange(stream, point.rank, other);
    text += " " + contraflow::PeerAddress(stream).host;
  }
  std::puts(text.c_str());
}

}  // namespace

int main(int count, char** words) {
  if (count != 7) {
    std::fputs("usage: meeting_main RANK SIZE HOST PORT SECRET TIMEOUT_MS\n", stderr);
    return 2;
  }
  try {
    Run(words);
    return 0;
  } catch (const std::exception& error) {
    std::puts(error.what());
    return 1;
  }
}
