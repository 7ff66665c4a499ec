#pragma once

namespace contraflow {

/// y[rows x out] = x[rows x in] w[in x out].
template <typename T>
void LinearForward(const T* x, const T* w, int rows, int in, int out, T* y);

/// As LinearForward, added to what y holds.
template <typename T>
void LinearForwardAdd(const T* x, const T* w, int rows, int in, int out, T* y);

/// dx[rows x in] = dy[rows x out] w^T.
template <typename T>
void LinearBackwardInput(const T* dy, const T* w, int rows, int in, int out, T* dx);

/// As LinearBackwardInput, added to what dx holds.
template <typename T>
void LinearBackwardInputAdd(const T* dy, const T* w, int rows, int in, int out, T* dx);

/// dw[in x out] += x^T dy.
template <typename T>
void LinearBackwardWeight(const T* x, const T* dy, int rows, int in, int out, T* dw);

}  // namespace contraflow
