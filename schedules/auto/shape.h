#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compiler/plan/spec.h"
#include "schedules/auto/candidate_search.h"
#include "schedules/partition/promising.h"
#include "schedules/partition/stages.h"
#include "schedules/search/incumbent.h"

namespace contraflow {

/// Orders that one takes as long as to evaluate that is made with its messages and bounds.
inline constexpr int64_t kOrdersMade = 8;
/// Orders of a first run of a shape of layers, over all partitions.
inline constexpr int64_t kOrdersOfLayers = 400;

/// One part of the space that `auto` searches: a placement and depth, in one of the ways that the
/// spec leaves open to hold less, within one limit.
class Shape {
 public:
  virtual ~Shape() = default;

  /// Least step of any plan of the shape, as far as a bound below `enough` matters; 0 where none is
  /// known.
  virtual Time Bound(Time enough) = 0;
  /// Searches with this work, and offers what it finds. False if no more work can help.
  virtual bool Run(SearchWork* work, Incumbent* incumbent) = 0;
  /// Worth of a quick look at the shape, before it has run; offers a plan that it comes upon.
  virtual Worth Look(SearchWork* /*work*/, Incumbent* /*incumbent*/) { return {}; }
  /// Instructions of an order, and orders of a first search.
  virtual int64_t instructions() const = 0;
  virtual int64_t orders() const = 0;
  virtual const std::vector<Route>& routes() const = 0;
  /// The published schedule that hides all-to-alls best, as far as is known.
  const PublishedStep& hiding() const { return hiding_; }
  /// Memory that the shape lacks, if it says why nothing fits.
  struct Lack {
    int64_t excess = 0;
    std::string advice;
  };
  virtual std::optional<Lack> WhyNot() { return std::nullopt; }
  /// The shortest step that the shape has found.
  std::optional<Time> step() const { return step_; }

 protected:
  void Found(Time step) { step_ = std::min(step, step_.value_or(step)); }
  void FoundHiding(const PublishedStep& found) { hiding_.Offer(found); }

 private:
  std::optional<Time> step_;
  PublishedStep hiding_;
};

/// Shapes of a spec with costs of stages: its placements, each in every way. Refuses placements
/// that cannot be had.
std::vector<std::unique_ptr<Shape>> StageShapes(const Spec& spec, Incumbent* incumbent);

/// Shapes of a spec with costs of layers: placements and depths, each in every way.
std::vector<std::unique_ptr<Shape>> LayerShapes(const Spec& spec, const SearchControl& control,
                                                Incumbent* incumbent);

/// Adds the shape of the layers of a spec in its placement and depth, or, where it allows a single
/// partition, those of its stages. Throws Error if no plan of that fits the memory limit.
void AddLayerShapes(const Spec& spec, LayerStages* layers,
                    std::vector<std::unique_ptr<Shape>>* shapes);

/// Adds the shape of a candidate; none if nothing can fit.
void AddStageShape(Candidate candidate, std::vector<std::unique_ptr<Shape>>* shapes);

}  // namespace contraflow
