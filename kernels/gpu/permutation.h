#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gpu/stream.h"
#include "kernels/host/bf16.h"

namespace contraflow::gpu {

/// Bytes of work memory that SortByExpert needs.
size_t SortWork(int rows, int experts, int top_k);

/// Sorts the rows * top_k (token, choice) pairs by expert, tokens ascending inside each expert,
/// then choices: count, scan and stable scatter, without a sum whose order is not fixed. capacity
/// 0: first[experts + 1], the sorted rows of expert e are first[e] .. first[e + 1]; token_of[rows *
/// top_k] the token of each sorted row; row_of[rows x top_k] the sorted row of each pair. With a
/// capacity every expert has that many rows, beginning at e * capacity, as SortIntoCapacity
/// (kernels/permutation.h): a pair that finds none left has row -1, a row that no pair took token
/// -1; *dropped += the pairs without a row. `dropped` may be null.
void SortByExpert(Stream stream, const int32_t* expert, int rows, int experts, int top_k,
                  int capacity, void* work, int32_t* first, int32_t* token_of, int32_t* row_of,
                  int32_t* dropped);

/// sorted[i] = x[token_of[i]], rows of `width`; of token -1 zero.
void GatherTokens(Stream stream, const Bf16* x, const int32_t* token_of, int sorted_rows, int width,
                  Bf16* sorted);
/// The same from row_of[rows x top_k] as well: every token is read once and written top_k times,
/// which is less to read. token_of tells the rows that no pair has.
void SpreadTokens(Stream stream, const Bf16* x, const int32_t* row_of, const int32_t* token_of,
                  int rows, int sorted_rows, int top_k, int width, Bf16* sorted);

/// dx[t] = sum over k, ascending, of dsorted[row_of[t][k]] in fp32, of row -1 nothing.
void GatherTokensBackwardInput(Stream stream, const Bf16* dsorted, const int32_t* row_of, int rows,
                               int top_k, int width, Bf16* dx);

}  // namespace contraflow::gpu
