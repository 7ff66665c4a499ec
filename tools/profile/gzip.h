#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace contraflow {

/// True for what begins as a gzip file does.
bool IsGzip(std::string_view bytes);

/// Content of a gzip file (RFC 1952), of at most `limit` bytes. Throws Error "PLACE: ..." if it is
/// cut short, damaged or larger, or if this build has no zlib.
std::string Gunzip(std::string_view bytes, int64_t limit, const std::string& place);

}  // namespace contraflow
