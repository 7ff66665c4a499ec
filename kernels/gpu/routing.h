#pragma once

// How tokens get to their experts and back: the choice, the sort by expert, the sum.

#include <cstddef>
#include <cstdint>

#include "kernels/gpu/stream.h"
#include "kernels/host/bf16.h"

namespace contraflow::gpu {

/// Most choices a token can have.
inline constexpr int kMaxTopK = 16;
/// Most experts that tokens can choose from.
inline constexpr int kMaxExperts = 1024;

/// probabilities[rows x experts] holds the logits and becomes their softmax over all experts. The
/// top_k most probable of a row, in descending order and ties to the lower index, go to
/// expert[rows x top_k]; their probabilities, not renormalised, to weight[rows x top_k].
void RouterForward(Stream stream, int rows, int experts, int top_k, float* probabilities,
                   int32_t* expert, float* weight);

/// Gradient of the logits from that of the weights; the choice itself is constant.
void RouterBackwardInput(Stream stream, const float* probabilities, const int32_t* expert,
                         const float* dweight, int rows, int experts, int top_k, Bf16* dlogits);

/// Bytes of work memory that SortByExpert needs.
size_t SortWork(int rows, int experts, int top_k);

/// Sorts the rows * top_k (token, choice) pairs by expert, tokens ascending inside each expert,
/// then choices: count, scan and stable scatter, without a sum whose order is not fixed. capacity
/// 0: first[experts + 1], the sorted rows of expert e are first[e] .. first[e + 1]; token_of[rows *
/// top_k] the token of each sorted row; row_of[rows x top_k] the sorted row of each pair. With a
/// capacity every expert has that many rows, beginning at e * capacity, as SortIntoCapacity
/// (kernels/host/routing.h): a pair that finds none left has row -1, a row that no pair took token
/// -1; *dropped += the pairs without a row. `dropped` may be null.
void SortByExpert(Stream stream, const int32_t* expert, int rows, int experts, int top_k,
                  int capacity, void* work, int32_t* first, int32_t* token_of, int32_t* row_of,
                  int32_t* dropped);

/// sorted[i] = x[token_of[i]], rows of `width`; a row of token -1 becomes 0.
void GatherTokens(Stream stream, const Bf16* x, const int32_t* token_of, int sorted_rows, int width,
                  Bf16* sorted);
/// Like GatherTokens, by row_of[rows x top_k] as well: every token is read once and written top_k
/// times, so less is read. token_of says which rows no pair took.
void SpreadTokens(Stream stream, const Bf16* x, const int32_t* row_of, const int32_t* token_of,
                  int rows, int sorted_rows, int top_k, int width, Bf16* sorted);

/// dx[t] = sum over k, ascending, of dsorted[row_of[t][k]] in fp32; a pair of row -1 adds nothing.
void GatherTokensBackwardInput(Stream stream, const Bf16* dsorted, const int32_t* row_of, int rows,
                               int top_k, int width, Bf16* dx);

/// y[t] = residual[t] + sum over k, ascending and in fp32, of weight[t][k] * sorted[row_of[t][k]];
/// a pair of row -1 adds nothing. `kept`, if not null, becomes a copy of the rows of sorted that a
/// pair has.
void CombineForward(Stream stream, const Bf16* residual, const Bf16* sorted, const int32_t* row_of,
                    const float* weight, int rows, int top_k, int width, Bf16* y,
                    Bf16* kept = nullptr);

/// dsorted[row_of[t][k]] = weight[t][k] * dy[t]; dweight[t][k] = dot(dy[t], sorted[row_of[t][k]]),
/// of a pair of row -1 only dweight, which becomes 0. Rows of token -1, of sorted_rows, become 0.
void CombineBackwardInput(Stream stream, const Bf16* dy, const Bf16* sorted, const int32_t* row_of,
                          const int32_t* token_of, const float* weight, int rows, int sorted_rows,
                          int top_k, int width, Bf16* dsorted, float* dweight);

}  // namespace contraflow::gpu
