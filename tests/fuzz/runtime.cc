// Targets of everything that a run reads and hears.

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <string>
#include <utility>

#include "compiler/files/json.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/launch/link.h"
#include "runtime/launch/listener.h"
#include "runtime/launch/process_run.h"
#include "runtime/launch/world.h"
#include "runtime/model/dataset.h"
#include "runtime/model/model.h"
#include "runtime/model/model_json.h"
#include "tests/fuzz/targets.h"

namespace contraflow {
namespace {

/// Both ends of a connection, into one of which the bytes were written, as far as they fit.
Socket Sent(std::string_view bytes) {
  int ends[2];
  CF_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  const Socket there(ends[1]);
  static_cast<void>(send(there.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
  return Socket(ends[0]);
}

}  // namespace

void FuzzDataset(std::string_view bytes) {
  static const Model model = [] {
    Model small;
    small.sequence = 4;
    small.batch = 2;
    return small;
  }();
  static const std::string path = std::filesystem::temp_directory_path() /
                                  ("contraflow-fuzz-dataset-" + std::to_string(getpid()));
  std::ofstream(path, std::ios::binary) << bytes;
  try {
    Dataset dataset = ReadDataset(path, model);
    dataset.Visit([](std::span<const std::byte>) {});
    const MicroBatch micro = DrawMicroBatch(dataset, model, 1, 2, 3, 4);
    for (const int32_t token : micro.tokens) CF_ASSERT(token >= 0 && token < model.vocabulary);
    static_cast<void>(HoldOut(0.25, model, &dataset));
  } catch (const Error&) {
  }
  std::filesystem::remove(path);
}

void FuzzManifest(std::string_view bytes) {
  const std::string input(bytes);
  CF_ASSERT(Unseal(Seal(input), "sealed") == input);
  const auto manifest = Accepted([&] { return ReadManifest(input, "input"); });
  if (!manifest) return;
  const std::string notes = input.substr(input.find('\n') + 1);
  const std::string text = WriteManifest(manifest->head, notes);
  const Manifest again = ReadManifest(text, "again");
  CF_ASSERT(DifferenceOf(again.head.model, manifest->head.model).empty());
  CF_ASSERT(again.shards == manifest->shards && again.blocks.size() == manifest->blocks.size());
  CF_ASSERT(WriteManifest(again.head, notes) == text);
}

void FuzzMessage(std::string_view bytes) {
  if (const auto facts = Accepted([&] { return ReadFacts(bytes); })) {
    CF_ASSERT(WriteFacts(*facts) == bytes);
    const auto name = [](int process) { return std::to_string(process); };
    CF_ASSERT(Disagreement(std::array{*facts, *facts}, name).empty());
  }
  Accepted([&] { return ReadDeviceStep(bytes); });
  try {
    Socket stream = Sent(bytes);
    for (int said = 0; said < 64; ++said) {
      CF_ASSERT(ReceiveWord(&stream, Clock::now()).text.size() <= bytes.size());
    }
  } catch (const Error&) {
  }
  size_t talked = 0;
  Link link(1, Sent(bytes), [&](int, uint8_t, const std::string& text) { talked += text.size(); });
  // It reads at least a byte a time until its end.
  for (size_t reads = 0; link.open() && reads <= bytes.size(); ++reads) link.Read();
  CF_ASSERT(!link.open() && talked <= bytes.size());
}

void FuzzModel(std::string_view bytes) {
  const auto model = Accepted([&] {
    Model read = ModelFromJson(ParseJson(bytes, "input").Root());
    CheckModel(read, "input");
    return read;
  });
  if (!model) return;
  std::string text;
  WriteJson(ModelToJson(*model), &text);
  CF_ASSERT(ModelFromJson(ParseJson(text, "again").Root()) == *model);
  for (const int stages : {1, 3, 8}) {
    try {
      const Model fitted = FitModel(*model, stages);
      int layers = 0;
      for (int stage = 0; stage < stages; ++stage) {
        const LayerRange range = LayersOfStage(fitted, stage, stages);
        CF_ASSERT(range.first == layers && range.last > layers);
        layers = range.last;
      }
      CF_ASSERT(layers == fitted.layers);
    } catch (const Error&) {
      continue;
    }
  }
}

void FuzzWorld(std::string_view bytes) {
  std::istringstream lines{std::string(bytes)};
  std::map<std::string, std::string> variables;
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find('=');
    if (equals != std::string::npos) variables[line.substr(0, equals)] = line.substr(equals + 1);
  }
  try {
    const World world = ReadWorld([&](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
    CF_ASSERT(world.size > 0 && world.rank >= 0 && world.rank < world.size);
    CF_ASSERT(world.local_rank >= -1 && world.local_rank < world.size);
    CF_ASSERT(world.master_port >= 0 && world.master_port <= 65535);
  } catch (const Error&) {
  }
}

}  // namespace contraflow
