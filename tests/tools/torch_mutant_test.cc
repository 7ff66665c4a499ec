// Lowered schedules of PyTorch, changed at random: what is read and found sound runs right in an
// interpreter that shares no code with Verify, over queues as gloo has them, and nothing else does.
// (tests/python/torch_orders.py holds Verify against PyTorch itself.)

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/verify/verify.h"
#include "tests/support/failure.h"
#include "tests/support/queue_run.h"
#include "tests/support/torch_rows.h"
#include "tools/interop/interop.h"

namespace contraflow::torch_mutant_test {
namespace {

bool IsReduction(const std::string& cell) { return cell.ends_with("GRAD"); }
bool IsTransfer(const std::string& cell) {
  return Contains(cell, "SEND") || Contains(cell, "RECV");
}

/// One to three cells dropped, repeated or moved; most of them messages and waits moved a little.
/// Reductions, which the interpreter does not know, stay in their place.
TorchRows Mutate(TorchRows rows, std::mt19937_64* random) {
  const auto below = [random](size_t size) { return static_cast<size_t>((*random)() % size); };
  for (size_t edits = 1 + below(3); edits > 0; --edits) {
    std::vector<std::string>& row = rows[below(rows.size())];
    const size_t at = below(row.size());
    const std::string cell = row[at];
    const size_t what = below(12);
    if (IsReduction(cell) || (what > 2 && !IsTransfer(cell))) continue;
    if (what != 1) row.erase(row.begin() + static_cast<std::ptrdiff_t>(at));
    if (what == 0 || row.empty()) continue;
    const size_t near = at + below(9) < 4 ? 0 : std::min(row.size(), at + below(9) - 4);
    const size_t to = what <= 2 ? below(row.size() + 1) : near;
    row.insert(row.begin() + static_cast<std::ptrdiff_t>(std::min(to, row.size())), cell);
  }
  return rows;
}

TEST_SUITE("property") {
  TEST_CASE("torch csv: two thousand mutants of lowered schedules have the interpreter's verdict") {
    std::vector<TorchRows> bases;
    for (const char* name : {"DualPipeV_comms", "ZBVZeroBubble_comms", "Interleaved1F1B_comms",
                             "ZBVZeroBubble_defer", "Interleaved1F1B_defer"}) {
      bases.push_back(SplitTorchCsv(TorchReference(name)));
    }
    std::mt19937_64 random(1);
    int sound = 0, unsound = 0, unread = 0;
    while (sound + unsound < 2000) {
      const std::string csv =
          JoinTorchCsv(Mutate(bases[static_cast<size_t>(random() % bases.size())], &random));
      CAPTURE(csv);
      Plan plan;
      try {
        plan = ReadTorchCsv(csv, "s.csv");
      } catch (const Error&) {
        ++unread;
        continue;
      }
      bool said = Verify(plan, Semantics::kEdge).empty();
      const std::string ran = RunQueues(plan, Semantics::kEdge);
      CAPTURE(ran);
      CHECK(said == ran.empty());
      (said ? sound : unsound) += 1;
    }
    MESSAGE(sound << " sound, " << unsound << " not, " << unread << " more are not read");
    CHECK(sound >= 300);
    CHECK(unsound >= 300);
  }
}

}  // namespace
}  // namespace contraflow::torch_mutant_test
