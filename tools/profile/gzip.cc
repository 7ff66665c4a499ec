#include "tools/profile/gzip.h"

#ifdef CF_ZLIB
#include <zlib.h>
#endif

#include <algorithm>
#include <array>
#include <utility>

#include "compiler/plan/error.h"

namespace contraflow {

bool IsGzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

#ifdef CF_ZLIB

namespace {

/// zlib's state, freed at the end.
struct Inflating {
  Inflating() {
    if (inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK) throw Error("zlib: out of memory");
  }
  Inflating(const Inflating&) = delete;
  Inflating& operator=(const Inflating&) = delete;
  ~Inflating() { inflateEnd(&stream); }

  z_stream stream{};
};

}  // namespace

std::string Gunzip(std::string_view bytes, int64_t limit, const std::string& place) {
  Inflating inflating;
  z_stream& stream = inflating.stream;
  std::string content;
  std::array<char, 1 << 16> piece{};
  bool whole = false;
  while (!bytes.empty() || stream.avail_in > 0) {
    if (stream.avail_in == 0) {
      const size_t next = std::min(bytes.size(), size_t{1} << 20);
      // zlib does not write there.
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
      stream.avail_in = static_cast<uInt>(next);
      bytes.remove_prefix(next);
    }
    // A file may be several, one after the other.
    if (whole) inflateReset(&stream);
    whole = false;
    int state = Z_OK;
    do {
      stream.next_out = reinterpret_cast<Bytef*>(piece.data());
      stream.avail_out = static_cast<uInt>(piece.size());
      state = inflate(&stream, Z_NO_FLUSH);
      if (state != Z_OK && state != Z_STREAM_END && state != Z_BUF_ERROR) {
        throw Error(place +
                    ": not a whole gzip file: " + (stream.msg != nullptr ? stream.msg : "damaged"));
      }
      const size_t got = piece.size() - stream.avail_out;
      if (std::cmp_greater(content.size() + got, limit)) {
        throw Error(place + ": holds more than " + std::to_string(limit) +
                    " bytes, the limit for its kind");
      }
      content.append(piece.data(), got);
    } while (state != Z_STREAM_END && stream.avail_out == 0);
    whole = state == Z_STREAM_END;
  }
  if (!whole) throw Error(place + ": not a whole gzip file: it ends too soon");
  return content;
}

#else

std::string Gunzip(std::string_view, int64_t, const std::string& place) {
  throw Error(place + ": is packed, and this build has no zlib; unpack it with gunzip");
}

#endif

}  // namespace contraflow
