// Any bytes are the text of a manifest or an Error, and a manifest survives writing.

#include "runtime/checkpoint/manifest.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "compiler/plan/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace contraflow;
  const std::string input(reinterpret_cast<const char*>(data), size);
  CF_ASSERT(Unseal(Seal(input), "sealed") == input);
  Manifest manifest;
  try {
    manifest = ReadManifest(input, "input");
  } catch (const Error&) {
    return 0;
  }
  const std::string notes = input.substr(input.find('\n') + 1);
  const std::string text = WriteManifest(manifest.head, notes);
  const Manifest again = ReadManifest(text, "again");
  CF_ASSERT(DifferenceOf(again.head.model, manifest.head.model).empty());
  CF_ASSERT(again.shards == manifest.shards && again.blocks.size() == manifest.blocks.size());
  CF_ASSERT(WriteManifest(again.head, notes) == text);
  return 0;
}
