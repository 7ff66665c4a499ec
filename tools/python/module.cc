#include "tools/python/bindings.h"

PYBIND11_MODULE(_core, module) {
  namespace python = contraflow::python;
  module.attr("__version__") = CF_VERSION;
  module.doc() = "The compiler itself; see the package contraflow.";
  python::BindInterrupt();
  python::BindErrors(module);
  auto plan = python::BindPlan(module);
  python::BindCosts(module);
  python::BindSimulation(module, &plan);
  python::BindInterop(&plan);
  python::BindCompile(module);
  python::BindCompare(module);
  python::BindPlanner(module);
  python::BindDiff(module);
}
