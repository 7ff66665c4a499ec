#pragma once

#include <cstdint>

namespace contraflow {

/// Sorts the rows * top_k (token, choice) pairs by expert, tokens ascending inside each expert.
/// first[experts + 1]: the sorted rows of expert e are first[e] .. first[e + 1].
/// token_of[rows * top_k]: the token of each sorted row.
/// row_of[rows x top_k]: the sorted row of each token's k-th choice.
void SortByExpert(const int32_t* expert, int rows, int experts, int top_k, int32_t* first,
                  int32_t* token_of, int32_t* row_of);

/// As SortByExpert, with `capacity` rows for every expert: of e they begin at first[e] = e *
/// capacity, and its pairs, tokens ascending, take one each. A pair that finds none left has row
/// -1, a row that no pair took token -1. Returns the number of pairs without a row.
int SortIntoCapacity(const int32_t* expert, int rows, int experts, int top_k, int capacity,
                     int32_t* first, int32_t* token_of, int32_t* row_of);

/// sorted[i] = x[token_of[i]], rows of `width`; of token -1 zero.
template <typename T>
void GatherTokens(const T* x, const int32_t* token_of, int sorted_rows, int width, T* sorted);

/// dx[t] = sum over k, ascending, of dsorted[row_of[t][k]], of row -1 nothing: the gradient of
/// GatherTokens, as a gather.
template <typename T>
void GatherTokensBackwardInput(const T* dsorted, const int32_t* row_of, int rows, int top_k,
                               int width, T* dx);

}  // namespace contraflow
