// The report of a job that stopped: compared whole.

#include "runtime/launch/fault_report.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/support/failure.h"

namespace contraflow::fault_report_test {
namespace {

std::string Name(int process) { return "rank " + std::to_string(process); }

std::string Report(const Findings& findings) { return FaultReport("error: ", Name, findings); }

Standing At(const std::string& position, double since, int waits_for = -1) {
  Standing standing;
  standing.kind = Standing::Kind::kAnswered;
  standing.position = position;
  standing.since = since;
  standing.waits_for = waits_for;
  return standing;
}

Standing Gone(Standing standing, Standing::Kind kind, double heard) {
  standing.kind = kind;
  standing.heard = heard;
  return standing;
}

Fault Seen(int process) { return {FaultKind::kLost, process, "its connection closed"}; }
Fault Told(FaultKind kind, int process, const std::string& text) { return {kind, process, text}; }

TEST_SUITE("unit") {
  TEST_CASE("fault report: a lost rank and who waited for it") {
    Findings findings;
    findings.cause = Seen(2);
    findings.later = {Told(FaultKind::kError, 1, "rank 1, instruction 3: no rank 2"), Seen(3),
                      Told(FaultKind::kSignal, 0, "SIGTERM"),
                      Told(FaultKind::kSignal, 1, "SIGTERM")};
    findings.standings = {
        At("step 3, instruction 17 (RECV_F s1 m4 from=2), waits for rank 2", 0.84, 2),
        At("step 3, at its end", 0.0),
        Gone(At("step 3, instruction 12 (F s2 m1)", 0.12), Standing::Kind::kLost, 0.3),
        Gone({}, Standing::Kind::kLost, 1.0),
        Gone(At("step 2, at its start", 7), Standing::Kind::kUnheard, 61.04),
        Gone({}, Standing::Kind::kUnheard, 1.0),
        {}};
    CHECK(Report(findings) ==
          "error: rank 2 was lost: its connection closed\n"
          "  rank 0  step 3, instruction 17 (RECV_F s1 m4 from=2), waits for rank 2 since 0.8 s\n"
          "  rank 1  step 3, at its end since 0.0 s\n"
          "  rank 2  lost; last heard from 0.3 s before, step 3, instruction 12 (F s2 m1) since "
          "0.1 s\n"
          "  rank 3  lost; never heard from\n"
          "  rank 4  did not answer; last heard from 61.0 s before, step 2, at its start since "
          "7.0 s\n"
          "  rank 5  did not answer; never heard from\n"
          "  then    rank 1, instruction 3: no rank 2\n"
          "  then    rank 0 and rank 1 were sent SIGTERM\n");
  }

  TEST_CASE("fault report: an error names its rank once") {
    Findings findings;
    findings.standings = {At("a", 0), At("b", 1)};
    for (const FaultKind kind : {FaultKind::kError, FaultKind::kBug}) {
      findings.cause = Told(kind, 1, "rank 1, instruction 3 (F s0 m0): injected");
      CHECK(Report(findings) ==
            "error: rank 1, instruction 3 (F s0 m0): injected\n"
            "  rank 0  a since 0.0 s\n"
            "  rank 1  b since 1.0 s\n");
    }
    // Rank 12 is not rank 1; a later name is not the place.
    findings.cause = Told(FaultKind::kError, 1, "rank 12 has a different plan\nthan rank 1");
    CHECK(Report(findings) ==
          "error: rank 1: rank 12 has a different plan\n"
          "    than rank 1\n"
          "  rank 0  a since 0.0 s\n"
          "  rank 1  b since 1.0 s\n");
    findings.cause = Seen(1);
    findings.later = {Told(FaultKind::kError, 1, "two\nlines")};
    CHECK(Report(findings) ==
          "error: rank 1 was lost: its connection closed\n"
          "  rank 0  a since 0.0 s\n"
          "  rank 1  b since 1.0 s\n"
          "  then    rank 1: two\n"
          "          lines\n");
  }

  TEST_CASE("fault report: what is the matter of the whole job is nobody's in particular") {
    Findings findings;
    findings.cause = Told(FaultKind::kJob, 1, "rank 1 has a different plan than rank 0");
    findings.standings = {At("a", 0), At("b", 1), At("c", 2)};
    CHECK(Report(findings) == "error: rank 1 has a different plan than rank 0\n");
    findings.later = {Told(FaultKind::kJob, 0, "rank 1 has a different plan than rank 0"),
                      Told(FaultKind::kError, 2, "too late")};
    CHECK(Report(findings) ==
          "error: rank 1 has a different plan than rank 0\n"
          "  then    rank 2: too late\n");
    CHECK(!MayFollow({findings.cause}, 0));
  }

  TEST_CASE("fault report: what several ranks say is one line") {
    Findings findings;
    findings.cause = Told(FaultKind::kError, 2, "plan.json: no such file");
    findings.later = {Told(FaultKind::kError, 0, "plan.json: no such file"),
                      Told(FaultKind::kError, 2, "plan.json: no such file")};
    findings.standings = {At("a", 0), At("b", 0), At("c", 0)};
    CHECK(Report(findings) ==
          "error: rank 0 and rank 2: plan.json: no such file\n"
          "  rank 0  a since 0.0 s\n"
          "  rank 1  b since 0.0 s\n"
          "  rank 2  c since 0.0 s\n");
    findings.later.push_back(Told(FaultKind::kError, 1, "plan.json: no such file"));
    CHECK(Report(findings) == "error: all 3 ranks: plan.json: no such file\n");
    findings.cause = Told(FaultKind::kSignal, 1, "SIGINT");
    CHECK(Report(findings) ==
          "error: rank 1 was sent SIGINT\n"
          "  rank 0  a since 0.0 s\n"
          "  rank 1  b since 0.0 s\n"
          "  rank 2  c since 0.0 s\n"
          "  then    all 3 ranks: plan.json: no such file\n");

    findings = {};
    findings.cause = Told(FaultKind::kSignal, 0, "SIGTERM");
    for (int p = 0; p < 9; ++p) {
      findings.standings.push_back({});
      if (p < 8) findings.later.push_back(Told(FaultKind::kSignal, p, "SIGTERM"));
    }
    CHECK(Report(findings) ==
          "error: rank 0, rank 1, rank 2, rank 3, rank 4 and 3 more were sent SIGTERM\n");
    findings.later.resize(3);
    CHECK(Report(findings) == "error: rank 0, rank 1 and rank 2 were sent SIGTERM\n");
  }

  TEST_CASE("fault report: a rank on its own") {
    Findings findings;
    findings.standings = {At("step 1, at its end", 2)};
    findings.cause = Told(FaultKind::kError, 0, "out of memory");
    CHECK(Report(findings) == "error: out of memory\n");
    findings.cause = Told(FaultKind::kSignal, 0, "SIGTERM");
    CHECK(Report(findings) ==
          "error: rank 0 was sent SIGTERM\n"
          "  rank 0  step 1, at its end since 2.0 s\n");
  }

  TEST_CASE("fault report: circles of waiting") {
    Findings findings;
    findings.cause = Told(FaultKind::kTimeout, 0, "no rank has made progress for 20 s");
    // 0 waits for 3; 3 -> 1 -> 3 is a circle; 2 waits for itself; 4 for one that does not exist.
    findings.standings = {At("a", 20, 3), At("b", 20, 3), At("c", 20, 2),
                          At("d", 20, 1), At("e", 20, 9), At("f", 20)};
    CHECK(Report(findings) ==
          "error: no rank has made progress for 20 s\n"
          "  rank 0  a since 20.0 s\n"
          "  rank 1  b since 20.0 s\n"
          "  rank 2  c since 20.0 s\n"
          "  rank 3  d since 20.0 s\n"
          "  rank 4  e since 20.0 s\n"
          "  rank 5  f since 20.0 s\n"
          "  circular wait: rank 1 for rank 3, rank 3 for rank 1\n"
          "  circular wait: rank 2 for rank 2\n");
    findings.cause = Seen(5);
    CHECK(!Contains(Report(findings), "circle"));
  }

  TEST_CASE("fault report: the cause is the first that does not follow from another") {
    const Fault error = Told(FaultKind::kError, 1, "disk full");
    const Fault lost_peer = Told(FaultKind::kError, 1, "the connection to rank 2 was lost");
    const Fault signal = Told(FaultKind::kSignal, 0, "SIGTERM");
    const Fault bug = Told(FaultKind::kBug, 3, "lost its mind");
    struct Case {
      std::vector<Fault> faults;
      size_t cause;
      bool may_follow;
    };
    const Case cases[] = {
        {{error}, 0, false},
        {{signal}, 0, true},
        {{lost_peer}, 0, true},
        {{bug}, 0, false},
        {{Seen(2)}, 0, false},
        {{signal, Seen(2)}, 1, false},
        {{lost_peer, signal, Seen(2)}, 2, false},
        {{signal, lost_peer, error}, 2, false},
        {{error, Seen(2)}, 0, false},
        {{Seen(2), error}, 0, false},
        {{Told(FaultKind::kTimeout, 0, "x"), error}, 0, false},
        // Rank 0 had said that it was sent a signal before its connection closed.
        {{signal, Seen(0)}, 0, true},
        {{signal, Seen(0), Seen(1)}, 2, false},
    };
    for (const Case& c : cases) {
      CAPTURE(&c - cases);
      CHECK(CauseOf(c.faults) == c.cause);
      CHECK(MayFollow(c.faults, CauseOf(c.faults)) == c.may_follow);
    }
  }
}

}  // namespace
}  // namespace contraflow::fault_report_test
