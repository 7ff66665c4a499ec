#pragma once

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"
#include "compiler/verify/verify.h"
#include "schedules/compile.h"

/// CAPTURE of several expressions, in one line of the failure.
#define CAPTURES(...)                                                             \
  INFO(#__VA_ARGS__ " := ", [&](const auto&... cf_values) {                       \
    std::string cf_text;                                                          \
    ((cf_text += doctest::toString(cf_values).c_str() + std::string("  ")), ...); \
    return cf_text;                                                               \
  }(__VA_ARGS__))

namespace contraflow {

/// A plan from a compact text, one line each, in any order but programs last:
///
///     level compute             default: comm if any instruction is of that level
///     copies 2                  data_parallel
///     route 0 1 : 0 1 2         ranks, one a stage, and micro-batches; default: stage r on rank r
///     rank                      begins the program of the next rank
///      F s0 m0
///
/// Sizes follow from the routes and programs. Throws Error on a line it does not know.
Plan PlanFromText(std::string_view text);

/// The findings as text, one `check: ToString(finding)` a line.
std::string FindingsText(const Plan& plan);

/// The names of the checks that object, each once, in their fixed order.
std::vector<std::string> ChecksOf(const std::vector<Finding>& findings);

Spec MakeSpec(std::string_view schedule, int ranks, int microbatches, CostModel costs);

/// The number in a variable of the environment, with which a test draws more cases, or others.
int FromEnvironment(const char* name, int otherwise);

/// Uneven stages and micro-batches, latency or bandwidth or neither, now and then costs of zero.
CostModel RandomCosts(std::mt19937_64* random, int stages, int microbatches);
/// Gives the messages between stages sizes of their own, none smaller than they were.
void SetSizes(std::mt19937_64* random, int stages, CommCost* comm);

/// Components of 1 to `max_layers` layers: heavy in compute, in all-to-all or neither; one for all
/// layers or one each; with chunk costs that follow from them, now and then latency or bandwidth,
/// and sometimes components, REDUCE and STEP of no time.
CostModel RandomMoeCosts(std::mt19937_64* random, int max_layers, Overlap overlap);

/// Like RandomMoeCosts, of stages with unlike layers, 1 to `max_layers` each: MoE ones alone, or
/// (`kinds`) dense and plain ones as well.
CostModel RandomUnlikeCosts(std::mt19937_64* random, int stages, int max_layers, bool kinds,
                            Overlap overlap);

/// Specs that fit, of every schedule in turn, with random small shapes and random costs.
std::vector<Spec> RandomSpecs(std::mt19937_64* random, int count, int max_ranks,
                              int max_microbatches);

}  // namespace contraflow
