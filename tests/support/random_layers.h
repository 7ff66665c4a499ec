#pragma once

#include <random>
#include <vector>

#include "schedules/partition/partition.h"

namespace contraflow {

/// A model of `layers` layers of some kinds; with `bytes`, what they hold as well.
CostModel RandomLayers(std::mt19937_64* random, int layers, bool bytes);

/// Every way to put `layers` layers in a row into this many stages.
std::vector<Partition> AllPartitions(int layers, int stages);

}  // namespace contraflow
