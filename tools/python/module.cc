#include "tools/python/bindings.h"

namespace {

/// Stands for the memory that pybind11 would give to an object without a value.
void* RefuseEmpty(size_t) {
  throw pybind11::type_error(
      "this object has no value: __new__ made it; call its class, or a function that returns one");
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  namespace python = contraflow::python;
  module.doc() = "The compiler itself; see the package contraflow.";
  python::BindInterrupt();
  python::BindErrors(module);
  auto plan = python::BindPlan(module);
  python::BindCosts(module);
  python::BindSimulation(module, &plan);
  python::BindInterop(&plan);
  python::BindCompile(module);
  python::BindCompare(module);
  python::BindDiff(module);
  for (const auto& [name, value] : module.attr("__dict__").cast<pybind11::dict>()) {
    if (!pybind11::isinstance<pybind11::type>(value)) continue;
    auto* const type = reinterpret_cast<PyTypeObject*>(value.ptr());
    if (auto* const ours = pybind11::detail::get_type_info(type)) ours->operator_new = &RefuseEmpty;
  }
}
