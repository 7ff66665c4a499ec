#include "tools/python/bindings.h"

PYBIND11_MODULE(_core, module) {
  namespace python = contraflow::python;
  module.doc() = "The compiler itself; see the package contraflow.";
  python::BindErrors(module);
  python::BindPlan(module);
  python::BindCosts(module);
  python::BindCompile(module);
}
