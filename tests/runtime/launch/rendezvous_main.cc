// One process of a meeting, for tests on several machines or network namespaces:
//   rendezvous_main <rank> <size> <host> <port> <secret> <timeout in ms>
// meets the others, exchanges a number with each over every connection, and prints where all
// listen.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <string>

#include "compiler/plan/error.h"
#include "runtime/launch/rendezvous.h"
#include "tests/support/receive_all.h"

namespace {

using contraflow::Clock;
using contraflow::Error;

void Exchange(const contraflow::Socket& socket, int self, int other, int kind) {
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(20);
  const int sent = kind + self * 1000 + other;
  int got = 0;
  contraflow::SendAll(socket, std::as_bytes(std::span(&sent, 1)), deadline);
  contraflow::ReceiveAll(socket, std::as_writable_bytes(std::span(&got, 1)), deadline);
  if (got != kind + other * 1000 + self) {
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
  point.mesh = true;
  const contraflow::Membership members = contraflow::Meet(point);
  for (int other = 0; other < point.size; ++other) {
    if (other == point.rank) continue;
    const auto place = static_cast<size_t>(other);
    Exchange(members.mesh[place], point.rank, other, 1'000'000);
    if (point.rank < 2 || other < 2) Exchange(members.watch[place], point.rank, other, 2'000'000);
  }
  std::string text = "met";
  for (const contraflow::Address& address : members.roster) text += " " + address.host;
  std::puts(text.c_str());
}

}  // namespace

int main(int count, char** words) {
  if (count != 7) {
    std::fputs("usage: rendezvous_main RANK SIZE HOST PORT SECRET TIMEOUT_MS\n", stderr);
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
