#include "kernels/host/linear.h"

#include "kernels/host/gemm.h"

namespace contraflow {

template <typename T>
void LinearForward(const T* x, const T* w, int rows, int in, int out, T* y) {
  Gemm<T>(Transpose::kNo, Transpose::kNo, rows, out, in, 1, x, in, w, out, 0, y, out);
}

template <typename T>
void LinearForwardAdd(const T* x, const T* w, int rows, int in, int out, T* y) {
  Gemm<T>(Transpose::kNo, Transpose::kNo, rows, out, in, 1, x, in, w, out, 1, y, out);
}

template <typename T>
void LinearBackwardInput(const T* dy, const T* w, int rows, int in, int out, T* dx) {
  Gemm<T>(Transpose::kNo, Transpose::kYes, rows, in, out, 1, dy, out, w, out, 0, dx, in);
}

template <typename T>
void LinearBackwardInputAdd(const T* dy, const T* w, int rows, int in, int out, T* dx) {
  Gemm<T>(Transpose::kNo, Transpose::kYes, rows, in, out, 1, dy, out, w, out, 1, dx, in);
}

template <typename T>
void LinearBackwardWeight(const T* x, const T* dy, int rows, int in, int out, T* dw) {
  if (rows == 0) return;
  Gemm<T>(Transpose::kYes, Transpose::kNo, in, out, rows, 1, x, in, dy, out, 1, dw, out);
}

#define CF_INSTANTIATE(T)                                                      \
  template void LinearForward(const T*, const T*, int, int, int, T*);          \
  template void LinearForwardAdd(const T*, const T*, int, int, int, T*);       \
  template void LinearBackwardInput(const T*, const T*, int, int, int, T*);    \
  template void LinearBackwardInputAdd(const T*, const T*, int, int, int, T*); \
  template void LinearBackwardWeight(const T*, const T*, int, int, int, T*);
CF_INSTANTIATE(float)
CF_INSTANTIATE(double)
#undef CF_INSTANTIATE

}  // namespace contraflow
