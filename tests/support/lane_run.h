#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "compiler/plan/plan.h"

namespace contraflow {

/// How the lanes of a rank get on with each other.
enum class Pace {
  kProgramOrder,  ///< one instruction after the other, every message a rendezvous
  kRandom,        ///< any instruction that may begin or end does so next, by lot
  kGreedyLane     ///< one lane, by lot, runs ahead as far as it can
};

struct PacedRun {
  Pace pace;
  uint64_t seed;
};

/// Runs a plan of level component or buffer symbolically, once for each of `runs`, on lanes that
/// know only their order and `after`: every instruction begins and ends at moments of their own,
/// and what it needs must have ended when it begins. At level buffer, making a value spoils all
/// others on the same bytes, and an instruction must find what it touches unspoilt from its
/// beginning to its end. "" if every component ran once, with its inputs, weight gradients in one
/// order, and all was reduced and stepped; else what went wrong first, and no run follows. Shares
/// no code with Verify and Simulate.
std::string RunInLanes(const Plan& plan, const std::vector<PacedRun>& runs);

/// Runs a plan of any level: RunSymbolically one of chunks, RunInLanes a lowered one at every pace,
/// each with a seed that is drawn. "" or what went wrong first.
std::string RunAtAnyPace(const Plan& plan, std::mt19937_64* random);

}  // namespace contraflow
