#include "runtime/model/dataset.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "compiler/files/file.h"
#include "compiler/plan/error.h"
#include "kernels/host/random.h"

namespace contraflow {

static_assert(std::endian::native == std::endian::little && sizeof(TokenHeader) == 32);

struct Dataset::TokenFile {
  explicit TokenFile(const std::string& path) : name(path), file(path) {}
  void ReadTokens(uint64_t place, std::span<std::byte> to) const {
    file.Read(static_cast<int64_t>(sizeof header + place * header.token_bytes), to);
  }
  uint32_t TokenAt(const std::byte* from) const {
    uint32_t token = 0;
    std::memcpy(&token, from, header.token_bytes);
    if (token < header.vocabulary) return token;
    throw Error(name + ": token " + std::to_string(token) + " is beyond the vocabulary of " +
                std::to_string(header.vocabulary) + " that its header names; make it again");
  }
  const std::string name;
  const SeekableFile file;
  TokenHeader header = {.magic = {}};
};

namespace {

/// Throws Error where that cannot be known: another text is other data.
bool IsRegularFile(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) return true;
  if (!error || error == std::errc::no_such_file_or_directory ||
      error == std::errc::not_a_directory) {
    return false;
  }
  throw Error(path + ": cannot be read: " + error.message());
}

/// Null if it is none, but perhaps a text.
std::shared_ptr<const Dataset::TokenFile> OpenTokens(const std::string& path, const Model& model) {
  if (!IsRegularFile(path)) return nullptr;
  const auto file = std::make_shared<Dataset::TokenFile>(path);
  TokenHeader& header = file->header;
  auto size = static_cast<uint64_t>(FileSize(path));
  file->file.Read(
      0,
      std::as_writable_bytes(std::span(&header, 1)).first(std::min(size, uint64_t{sizeof header})));
  if (header.magic != TokenHeader().magic) return nullptr;
  const auto refuse = [&](const std::string& what) { throw Error(path + ": " + what); };
  if (size < sizeof header) refuse("is cut off in its header of tokens");
  if (header.version != TokenHeader().version) {
    refuse("has tokens of version " + std::to_string(header.version) + ", this program reads " +
           std::to_string(TokenHeader().version));
  }
  if (header.token_bytes != 2 && header.token_bytes != 4) {
    refuse("has tokens of " + std::to_string(header.token_bytes) + " bytes; 2 or 4 are possible");
  }
  size -= sizeof header;
  if (header.count != size / header.token_bytes || size % header.token_bytes != 0) {
    refuse("its header names " + std::to_string(header.count) + " tokens of " +
           std::to_string(header.token_bytes) + " bytes, but " + std::to_string(size) +
           " bytes follow; make it again");
  }
  if (header.vocabulary > static_cast<uint64_t>(model.vocabulary)) {
    refuse("has tokens of a vocabulary of " + std::to_string(header.vocabulary) +
           ", which is more than the model's " + std::to_string(model.vocabulary) +
           "; use a model with that vocabulary");
  }
  return file;
}

constexpr int64_t kMaxTextBytes = int64_t{1} << 30;

constexpr const char* kDefaultText = "/usr/share/common-licenses/GPL-3";

/// Throws Error unless there is a sequence to draw.
void RequireSequence(const Dataset& data, const Model& model) {
  const auto needed = static_cast<uint64_t>(model.sequence) + 1;
  if (data.size() >= needed) return;
  const std::string unit = data.file ? "token" : "byte";
  throw Error(data.name + ": has " + std::to_string(data.size()) + " " + unit +
              "s, but one sequence of " + std::to_string(model.sequence) + " and the " + unit +
              " after it need " + std::to_string(needed) +
              "; use a longer text or a model with a shorter sequence");
}

}  // namespace

void Dataset::Read(uint64_t place, std::span<int32_t> tokens) const {
  if (!file) {
    for (int32_t& token : tokens) token = static_cast<unsigned char>(bytes[place++]);
    return;
  }
  // Into the end of where they go, from where they are widened one by one.
  const size_t each = file->header.token_bytes;
  const std::span<std::byte> raw = std::as_writable_bytes(tokens).last(tokens.size() * each);
  file->ReadTokens(first + place, raw);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>(file->TokenAt(raw.data() + i * each));
  }
}

void Dataset::Visit(const std::function<void(std::span<const std::byte>)>& visit) const {
  if (!file) return visit(std::as_bytes(std::span(bytes)));
  visit(std::as_bytes(std::span(&file->header, 1)));
  const size_t each = file->header.token_bytes;
  std::vector<std::byte> piece(size_t{1} << 20);
  for (uint64_t place = 0; place < count;) {
    const uint64_t tokens = std::min(count - place, uint64_t{piece.size() / each});
    piece.resize(tokens * each);
    file->ReadTokens(first + place, piece);
    for (size_t at = 0; at < piece.size(); at += each) file->TokenAt(piece.data() + at);
    visit(piece);
    place += tokens;
  }
}

Dataset ReadDataset(const std::string& path, const Model& model) {
  CF_ASSERT(model.vocabulary >= 256);  // every byte is a token of it
  std::error_code error;
  if (path.empty() && !std::filesystem::exists(kDefaultText, error) && !error) {
    throw Error("no default text on this machine (looked for " + std::string(kDefaultText) +
                "); give one with `data`");
  }
  Dataset data;
  data.name = path.empty() ? kDefaultText : path;
  data.file = OpenTokens(data.name, model);
  if (data.file) {
    data.count = data.file->header.count;
  } else {
    data.bytes = ReadFile(data.name, kMaxTextBytes);
  }
  RequireSequence(data, model);
  return data;
}

Dataset HoldOut(double fraction, const Model& model, Dataset* data) {
  Dataset end = *data;
  const auto held = static_cast<uint64_t>(static_cast<double>(data->size()) * fraction);
  const uint64_t kept = data->size() - held;
  if (data->file) {
    data->count = kept;
    end.first += kept;
    end.count = held;
  } else {
    data->bytes.resize(kept);
    end.bytes.erase(0, kept);
  }
  for (const Dataset* part : {data, &end}) RequireSequence(*part, model);
  return end;
}

void DrawMicroBatch(const Dataset& dataset, const Model& model, uint64_t seed, int step, int device,
                    int microbatch, MicroBatch* micro) {
  uint64_t key = DeriveKey(seed, static_cast<uint64_t>(step));
  key = DeriveKey(key, static_cast<uint64_t>(device));
  key = DeriveKey(key, static_cast<uint64_t>(microbatch));
  const auto length = static_cast<size_t>(model.sequence);
  const uint64_t places = dataset.size() - length;
  micro->tokens.resize(static_cast<size_t>(model.tokens()));
  micro->targets.resize(micro->tokens.size());
  for (size_t b = 0; b < static_cast<size_t>(model.batch); ++b) {
    const uint64_t place = DeriveKey(key, b) % places;
    dataset.Read(place, std::span(micro->tokens).subspan(b * length, length));
    dataset.Read(place + 1, std::span(micro->targets).subspan(b * length, length));
  }
}

}  // namespace contraflow
