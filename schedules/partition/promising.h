#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "schedules/partition/partition.h"
#include "schedules/partition/staged.h"
#include "schedules/search/candidates.h"
#include "schedules/search/work.h"

namespace contraflow {

/// A partition and a bound on any order of its stages; 0 where none is known.
struct Chance {
  Time bound = 0;
  Partition partition;
};

/// A published schedule, and the step of its order on some partition; with what must run again, if
/// it does not fit, about.
struct PublishedStep {
  std::string schedule = {};  ///< "": none
  Time step = 0;

  /// Takes the shorter of both.
  void Offer(const PublishedStep& other);
};

/// Worth of partitions, whatever the budget.
struct Judged {
  KnownWorths bound, published;
  /// The shortest order that hides all-to-alls and fits, or would with a little more memory.
  PublishedStep hiding;
};

/// A partition with its best published order.
struct FirstOrder {
  Partition partition;
  PartitionWorth worth;
  /// Unset where there is none or the look is not the first. If cells may run again, of stages that
  /// do not.
  std::optional<Plan> order;
  PublishedStep hiding;  ///< as Judged::hiding
};

/// The best published order of a candidate, without its partition. If something may run again or go
/// to the host, that is the shortest one, with an excess of 1 and the time that its excess takes to
/// run again.
FirstOrder LookAt(const Candidate& candidate, SearchWork* work);

/// Look at the first partition that would be tried.
FirstOrder FirstLook(const Spec& of, const Plan& frame, LayerStages* layers, Judged* judged,
                     SearchWork* work);

/// Different partitions that may do best, the most promising first: the one on which published
/// orders do best, the one that the bound for any ends with, and those with the least bounds, from
/// several starts moved by single layers. `any` gives the partition with which the bound for any
/// partition ends that looks at steps up to some length.
std::vector<Chance> Promising(const Spec& of, const Plan& frame, LayerStages* layers,
                              const std::function<Partition(Time)>& any, Judged* judged,
                              SearchWork* work);

}  // namespace contraflow
