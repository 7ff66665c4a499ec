// Any bytes are the manifest of a checkpoint or an Error, and a manifest survives writing. Bytes
// with a place for a checksum get the right one: else every input but the corpus would end there.

#include "runtime/checkpoint/manifest.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "compiler/plan/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string input(reinterpret_cast<const char*>(data), size);
  contraflow::Manifest manifest;
  try {
    if (contraflow::SealManifest(&input)) {
      manifest = contraflow::ReadManifest(input, "sealed");
    } else {
      contraflow::ReadManifest(input, "input");
      CF_ASSERT(false);  // Without a checksum it is none.
    }
  } catch (const contraflow::Error&) {
    return 0;
  }
  const std::string text = contraflow::WriteManifest(manifest);
  const contraflow::Manifest again = contraflow::ReadManifest(text, "again");
  CF_ASSERT(again.head.model == manifest.head.model);
  CF_ASSERT(contraflow::WriteManifest(again) == text);
  return 0;
}
