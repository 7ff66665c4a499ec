#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/gpu/matmul.h"
#include "kernels/gpu/stream.h"
#include "runtime/exec/gpu.h"

namespace contraflow {

/// How each matrix product is computed.
using MatmulChoices = std::map<gpu::MatmulShape, gpu::MatmulAlgorithm>;

/// Place where a choice was made, and holds.
struct MatmulPlace {
  std::string gpu;      ///< name of the GPU
  std::string library;  ///< Matmuls::Library
  int sms = 1;          ///< that products may use

  auto operator<=>(const MatmulPlace&) const = default;
};
using MatmulFile = std::map<MatmulPlace, MatmulChoices>;

/// Reads a file of choices, {"format": "contraflow-matmuls", "version": 1, "places": [..]}. Strict:
/// throws Error "PLACE: PATH: ..." for whatever else it is; whether an algorithm is one is for
/// Matmuls::Prepare to say.
MatmulFile ParseMatmulFile(std::string_view text, const std::string& place);
/// The same document again: ParseMatmulFile(WriteMatmulFile(f)) == f.
std::string WriteMatmulFile(const MatmulFile& file);

/// SHA-256 of the choices, hexadecimal, wherever they were made; "" of none.
std::string DigestOf(const MatmulChoices& choices);

/// Number of the shortest time; of equal ones the first.
size_t FastestOf(std::span<const uint64_t> times);

/// The choices for these products on this many SMs of this GPU: those of the file `path`. For
/// missing products, times all candidates in the stream, and adds the fastest to the file. A file
/// that is not there is made. Memory for that is given back. `moves` is called where something has
/// been done. Throws Error, with the remedy, for a file that is none or has an algorithm that
/// cannot be used here.
MatmulChoices ChooseMatmuls(const std::string& path, const std::vector<gpu::MatmulShape>& products,
                            Gpu& gpu, gpu::Stream stream, int sms,
                            const std::function<void()>& moves = {});

/// Like ChooseMatmuls, in a job, where all processes take what one has chosen: `leads` says which,
/// `broadcast` gives its text to all. Throws Error where a process has another kind of GPU or
/// library.
MatmulChoices ChooseMatmulsForAll(const std::string& path,
                                  const std::vector<gpu::MatmulShape>& products, Gpu& gpu,
                                  gpu::Stream stream, int sms, bool leads,
                                  const std::function<std::string(const std::string&)>& broadcast,
                                  const std::function<void()>& moves);

}  // namespace contraflow
