#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace contraflow {

/// Whole content of a file; "-" is standard input. Throws Error naming the path and the reason
/// (missing, a directory, no permission, larger than `limit` bytes).
std::string ReadFile(const std::string& path, int64_t limit);

/// Writes a file so that it is either complete or not there: into a temporary name in the same
/// directory, flushed to disk, then renamed. "-" is standard output. On any failure (unwritable
/// directory, full disk) the temporary file is removed and Error names path and reason.
void WriteFile(const std::string& path, std::string_view content);

}  // namespace contraflow
