#include "tools/bench/padded_experts.h"

#include <string>

#include "kernels/gpu/elementwise.h"

namespace contraflow::gpu {
namespace {

MatmulShape Product(const ExpertsSizes& sizes, Transpose a, Transpose b, int m, int n, int k) {
  MatmulShape shape;
  shape.transpose_a = a;
  shape.transpose_b = b;
  shape.m = m;
  shape.n = n;
  shape.k = k;
  shape.batch = sizes.experts;
  return shape;
}

MatmulShape AddedProduct(const ExpertsSizes& sizes, int m, int n, int k) {
  MatmulShape shape = Product(sizes, Transpose::kYes, Transpose::kNo, m, n, k);
  shape.float_out = true;
  shape.add = true;
  return shape;
}

int RowsEach(const ExpertsSizes& sizes) {
  if (sizes.experts < 1 || sizes.most_rows < 1 || sizes.most_rows % sizes.experts != 0) {
    throw GpuError(std::to_string(sizes.most_rows) + " rows are not equally many for each of " +
                   std::to_string(sizes.experts) + " experts");
  }
  return sizes.most_rows / sizes.experts;
}

}  // namespace

PaddedExperts::PaddedExperts(int sms, const ExpertsSizes& sizes) : sizes_(sizes), matmuls_(sms) {
  const int rows = RowsEach(sizes), d = sizes.width, f = sizes.inner;
  up_ = Product(sizes, Transpose::kNo, Transpose::kNo, rows, 2 * f, d);
  down_ = Product(sizes, Transpose::kNo, Transpose::kNo, rows, d, f);
  dhidden_ = Product(sizes, Transpose::kNo, Transpose::kYes, rows, f, d);
  dx_ = Product(sizes, Transpose::kNo, Transpose::kYes, rows, d, 2 * f);
  dgate_up_ = AddedProduct(sizes, d, 2 * f, rows);
  ddown_ = AddedProduct(sizes, f, d, rows);
  for (const MatmulShape& shape : {up_, down_, dhidden_, dx_, dgate_up_, ddown_}) {
    matmuls_.Prepare(shape);
  }
}

size_t PaddedExperts::work_bytes() const {
  return Matmuls::kWorkBytes +
         static_cast<size_t>(sizes_.most_rows) * static_cast<size_t>(sizes_.inner) * sizeof(Bf16);
}

void PaddedExperts::Forward(Stream stream, const int32_t* first, const Bf16* x, const Bf16* gate_up,
                            const Bf16* down, void* work, Bf16* gate_up_out, Bf16* hidden,
                            Bf16* y) const {
  matmuls_.Run(stream, up_, x, gate_up, nullptr, gate_up_out, work);
  SwigluForward(stream, gate_up_out, first + sizes_.experts, sizes_.most_rows, sizes_.inner,
                hidden);
  matmuls_.Run(stream, down_, hidden, down, nullptr, y, work);
}

void PaddedExperts::BackwardInput(Stream stream, const int32_t* first, const Bf16* gate_up,
                                  const Bf16* down, const Bf16* gate_up_out, const Bf16* dy,
                                  void* work, Bf16* dgate_up_out, Bf16* dx) const {
  auto* const dhidden =
      reinterpret_cast<Bf16*>(static_cast<std::byte*>(work) + Matmuls::kWorkBytes);
  matmuls_.Run(stream, dhidden_, dy, down, nullptr, dhidden, work);
  SwigluBackwardInput(stream, gate_up_out, dhidden, first + sizes_.experts, sizes_.most_rows,
                      sizes_.inner, dgate_up_out);
  matmuls_.Run(stream, dx_, dgate_up_out, gate_up, nullptr, dx, work);
}

void PaddedExperts::BackwardWeight(Stream stream, const Bf16* x, const Bf16* hidden,
                                   const Bf16* dgate_up_out, const Bf16* dy, void* work,
                                   float* dgate_up, float* ddown) const {
  matmuls_.Run(stream, dgate_up_, x, dgate_up_out, dgate_up, dgate_up, work);
  matmuls_.Run(stream, ddown_, hidden, dy, ddown, ddown, work);
}

}  // namespace contraflow::gpu
