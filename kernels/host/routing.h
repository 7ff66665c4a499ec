#pragma once

// How tokens get to their experts and back: the choice, the sort by expert, the sum.

#include <cstdint>

namespace contraflow {

/// probabilities[rows x experts] holds the logits and becomes their softmax over all experts. The
/// top_k most probable experts of a row, in descending order and ties to the lower index, go to
/// expert[rows x top_k]; their probabilities to weight[rows x top_k], with `renormalise` divided by
/// their sum. (That leaves the router of a top-1 model without a gradient.)
template <typename T>
void RouterForward(int rows, int experts, int top_k, bool renormalise, T* probabilities,
                   int32_t* expert, T* weight);

/// The load-balancing loss of the Switch Transformer for top_k choices: experts times the sum, over
/// them, of an expert's share of the rows * top_k choices and its mean probability. 1 where both
/// are even; nothing that is dropped later changes it.
template <typename T>
T RouterBalance(const T* probabilities, const int32_t* expert, int rows, int experts, int top_k);

/// Gradient of the logits from that of the weights, plus `balance` times that of RouterBalance; the
/// choice itself is constant.
template <typename T>
void RouterBackwardInput(const T* probabilities, const int32_t* expert, const T* dweight, int rows,
                         int experts, int top_k, bool renormalise, T balance, T* dlogits);

/// Sorts the rows * top_k (token, choice) pairs by expert, tokens ascending inside each expert.
/// first[experts + 1]: the sorted rows of expert e are first[e] .. first[e + 1].
/// token_of[rows * top_k]: the token of each sorted row.
/// row_of[rows x top_k]: the sorted row of each token's k-th choice.
void SortByExpert(const int32_t* expert, int rows, int experts, int top_k, int32_t* first,
                  int32_t* token_of, int32_t* row_of);

/// Like SortByExpert, with `capacity` rows for every expert: of e they begin at first[e] = e *
/// capacity, and its pairs, tokens ascending, take one each. A pair that finds none left has row
/// -1, a row that no pair took token -1. Returns the number of pairs without a row. A capacity of 0
/// is none: SortByExpert.
int SortIntoCapacity(const int32_t* expert, int rows, int experts, int top_k, int capacity,
                     int32_t* first, int32_t* token_of, int32_t* row_of);

/// sorted[i] = x[token_of[i]], rows of `width`; a row of token -1 becomes 0.
template <typename T>
void GatherTokens(const T* x, const int32_t* token_of, int sorted_rows, int width, T* sorted);

/// dx[t] = sum over k, ascending, of dsorted[row_of[t][k]]; a pair of row -1 adds nothing. The
/// gradient of GatherTokens, as a gather.
template <typename T>
void GatherTokensBackwardInput(const T* dsorted, const int32_t* row_of, int rows, int top_k,
                               int width, T* dx);

/// y[t] = residual[t] + sum over k, ascending, of weight[t][k] * sorted[row_of[t][k]]; a pair of
/// row -1 adds nothing.
template <typename T>
void CombineForward(const T* residual, const T* sorted, const int32_t* row_of, const T* weight,
                    int rows, int top_k, int width, T* y);

/// dsorted[row_of[t][k]] = weight[t][k] * dy[t]; dweight[t][k] = dot(dy[t], sorted[row_of[t][k]]),
/// of a pair of row -1 only dweight, which becomes 0. The gradient of the residual is dy. Has no
/// weights that are parameters.
template <typename T>
void CombineBackwardInput(const T* dy, const T* sorted, const int32_t* row_of, const T* weight,
                          int rows, int top_k, int width, T* dsorted, T* dweight);

}  // namespace contraflow
