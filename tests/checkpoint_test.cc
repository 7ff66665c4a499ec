#include "runtime/checkpoint.h"

#include <doctest/doctest.h>

#include "tests/checkpoint_support.h"
#include "tests/failure.h"

namespace contraflow {
namespace {

/// The newest checkpoint of a folder, which must be there.
Checkpoint OpenNewest(const CheckpointFolder& folder) {
  std::optional<Checkpoint> checkpoint = Checkpoint::Open(folder.path(), std::nullopt);
  REQUIRE(checkpoint.has_value());
  return *std::move(checkpoint);
}

TEST_SUITE("unit") {
  TEST_CASE("checkpoint: any cut of the model goes on from any other bit for bit") {
    const Model model = CheckpointModel();
    int step = 0;
    for (const int stages : {1, 2, 4, 8}) {
      for (const int members : {1, 2, 4}) {
        const CheckpointFolder folder;
        PrepareCheckpoints(folder.path());
        CutModel saved(model, stages, members);
        saved.Set(++step);
        saved.Save(folder.path(), step);
        const Checkpoint checkpoint = OpenNewest(folder);
        CHECK(checkpoint.head().step == step);
        for (const int other_stages : {1, 2, 4, 8}) {
          for (const int other_members : {1, 2, 4}) {
            CAPTURE(stages);
            CAPTURE(members);
            CAPTURE(other_stages);
            CAPTURE(other_members);
            CutModel loaded(model, other_stages, other_members);
            for (size_t d = 0; d < loaded.devices(); ++d) checkpoint.Load(loaded.All(d));
            CHECK(loaded.Wrong(step) == "");
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace contraflow
