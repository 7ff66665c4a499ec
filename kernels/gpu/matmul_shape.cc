#include <cstdint>

#include "kernels/gpu/matmul.h"

namespace contraflow::gpu {
namespace {

std::string Operand(const char* name, bool transposed, int rows, int columns) {
  return std::string(name) + (transposed ? "^T [" : " [") + std::to_string(rows) + " x " +
         std::to_string(columns) + "]";
}

void CheckOperand(const MatmulShape& shape, const char* name, const void* operand) {
  const char* wrong = nullptr;
  if (operand == nullptr) wrong = " is null";
  if (reinterpret_cast<uintptr_t>(operand) % kMatmulAlignment != 0) wrong = " is not 16-aligned";
  if (wrong != nullptr) throw GpuError("matmul " + ToString(shape) + ": " + name + wrong);
}

}  // namespace

std::string ToString(const MatmulShape& shape) {
  std::string text = shape.float_out ? "float" : "bf16";
  text += " [" + std::to_string(shape.m) + " x " + std::to_string(shape.n) + "]";
  text += shape.add ? " += " : " = ";
  text += Operand("a", shape.transpose_a == Transpose::kYes, shape.m, shape.k) + " " +
          Operand("b", shape.transpose_b == Transpose::kYes, shape.k, shape.n);
  if (shape.batch != 1) text += ", " + std::to_string(shape.batch) + " times";
  return text;
}

void CheckShape(const MatmulShape& shape) {
  if (shape.m < 1 || shape.n < 1 || shape.k < 1 || shape.batch < 1) {
    throw GpuError("matmul " + ToString(shape) + ": every size must be at least 1");
  }
}

void CheckCandidate(const MatmulShape& shape, int candidate, int candidates) {
  if (candidate >= 0 && candidate < candidates) return;
  throw GpuError("matmul " + ToString(shape) + ": there is no candidate " +
                 std::to_string(candidate) + " among " + std::to_string(candidates));
}

void CheckOperands(const MatmulShape& shape, const Bf16* a, const Bf16* b, const void* c,
                   const void* d, const void* work) {
  CheckOperand(shape, "a", a);
  CheckOperand(shape, "b", b);
  if (shape.add) CheckOperand(shape, "c", c);
  CheckOperand(shape, "d", d);
  CheckOperand(shape, "work", work);
}

}  // namespace contraflow::gpu
