// Any bytes are a training text or a file of tokens, or an Error. What is drawn of them are tokens
// of the model.

#include "runtime/model/dataset.h"

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "compiler/plan/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace contraflow;
  static const Model model = [] {
    Model small;
    small.sequence = 4;
    small.batch = 2;
    return small;
  }();
  static const std::string path = std::filesystem::temp_directory_path() /
                                  ("contraflow-fuzz-dataset-" + std::to_string(getpid()));
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  try {
    Dataset dataset = ReadDataset(path, model);
    dataset.Visit([](std::span<const std::byte>) {});
    const MicroBatch micro = DrawMicroBatch(dataset, model, 1, 2, 3, 4);
    for (const int32_t token : micro.tokens) CF_ASSERT(token >= 0 && token < model.vocabulary);
    static_cast<void>(HoldOut(0.25, model, &dataset));
  } catch (const Error&) {
  }
  std::filesystem::remove(path);
  return 0;
}
