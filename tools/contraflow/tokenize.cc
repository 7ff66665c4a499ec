#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compiler/files/file.h"
#include "compiler/plan/error.h"
#include "runtime/model/dataset.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/contraflow/cmd.h"

namespace contraflow {
namespace {

constexpr int64_t kMaxTextBytes = int64_t{1} << 36, kMaxVocabularyBytes = int64_t{1} << 28;
constexpr size_t kMaxTokenBytes = 256;

struct TokenizeFlags {
  std::string text, vocabulary, output = "-";
};

/// A line of a vocabulary without its escapes.
std::string Unescape(std::string_view line, const std::string& place) {
  std::string token;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\') {
      token += line[i];
      continue;
    }
    const char next = i + 1 < line.size() ? line[++i] : '\0';
    const auto hex = line.substr(std::min(i + 1, line.size()), 2);
    constexpr std::string_view kDigits = "0123456789abcdef";
    if (next == '\\') {
      token += '\\';
    } else if (next == 'n') {
      token += '\n';
    } else if (next == 't') {
      token += '\t';
    } else if (next == 'x' && hex.size() == 2 &&
               hex.find_first_not_of(kDigits) == std::string_view::npos) {
      token += static_cast<char>(kDigits.find(hex[0]) * 16 + kDigits.find(hex[1]));
      i += 2;
    } else {
      throw Error(place +
                  ": a backslash must begin \\\\, \\n, \\t or \\xNN (lower-case hexadecimal)");
    }
  }
  return token;
}

/// Tokens by their bytes; the first line is token 0.
class Vocabulary {
 public:
  explicit Vocabulary(const std::string& path) {
    const std::string text = ReadFile(path, kMaxVocabularyBytes);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string place = path + ": line " + std::to_string(tokens_.size() + 1);
      std::string token = Unescape(std::string_view(text).substr(begin, end - begin), place);
      if (token.empty() || token.size() > kMaxTokenBytes) {
        throw Error(place + ": a token must have 1.." + std::to_string(kMaxTokenBytes) + " bytes");
      }
      longest_ = std::max(longest_, token.size());
      const auto number = static_cast<uint32_t>(tokens_.size());
      const auto [at, added] = tokens_.emplace(std::move(token), number);
      if (!added) {
        throw Error(place + ": is the token of line " + std::to_string(at->second + 1) + " again");
      }
      begin = end + 1;
    }
    if (tokens_.empty()) throw Error(path + ": has no token");
  }

  uint64_t size() const { return tokens_.size(); }
  /// The longest token that the text goes on with, and its bytes; 0 if there is none.
  std::pair<uint32_t, size_t> Next(std::string_view text) const {
    for (size_t bytes = std::min(longest_, text.size()); bytes > 0; --bytes) {
      const auto token = tokens_.find(std::string(text.substr(0, bytes)));
      if (token != tokens_.end()) return {token->second, bytes};
    }
    return {0, 0};
  }

 private:
  std::unordered_map<std::string, uint32_t> tokens_;
  size_t longest_ = 0;
};

int RunTokenize(const TokenizeFlags& options) {
  RefuseOverwrite({"-o", options.output},
                  {{"the text", options.text}, {"`vocabulary`", options.vocabulary}});
  if (options.output == "-" && isatty(STDOUT_FILENO) == 1) {
    throw UsageError("tokens are binary, and standard output is a terminal; give -o FILE");
  }
  const std::string text = ReadFile(options.text, kMaxTextBytes);
  std::unique_ptr<const Vocabulary> vocabulary;
  if (!options.vocabulary.empty()) vocabulary = std::make_unique<Vocabulary>(options.vocabulary);
  TokenHeader header;
  header.vocabulary = vocabulary ? vocabulary->size() : 256;
  header.token_bytes = header.vocabulary <= 1 << 16 ? 2 : 4;
  std::string tokens;
  tokens.reserve(vocabulary ? 0 : text.size() * header.token_bytes);
  for (size_t at = 0; at < text.size(); ++header.count) {
    std::pair<uint32_t, size_t> next = {static_cast<unsigned char>(text[at]), 1};
    if (vocabulary) next = vocabulary->Next(std::string_view(text).substr(at));
    if (next.second == 0) {
      throw Error(options.text + ": at byte " + std::to_string(at) + " no token of " +
                  options.vocabulary + " fits; add one for each single byte (\\x00 to \\xff)");
    }
    tokens.append(reinterpret_cast<const char*>(&next.first), header.token_bytes);
    at += next.second;
  }
  WriteFile(options.output, [&](const PutBytes& put) {
    put({reinterpret_cast<const char*>(&header), sizeof header});
    put(tokens);
  });
  return kExitFine;
}

std::function<int()> AddTokenize(CLI::App* app) {
  const auto options = std::make_shared<TokenizeFlags>();
  AddPlan(app, &options->text, "TEXT")->description("any file; - is standard input");
  AddText(app, "--vocabulary", &options->vocabulary, "FILE",
          "a token a line, of which the longest that fits is taken; \\n, \\t,\n\\\\ and \\xNN "
          "stand for bytes (default: each byte is a token)");
  AddText(app, "-o,--output", &options->output, "FILE",
          "where to write the tokens, which are binary; - is stdout (default)");
  return [options] { return RunTokenize(*options); };
}

}  // namespace

const Command kTokenizeCommand = {
    .name = "tokenize",
    .summary = "turn a text into a file of tokens, for contraflow-run --data",
    .example = "contraflow tokenize text.txt -o text.tokens",
    .add = AddTokenize,
};

}  // namespace contraflow
