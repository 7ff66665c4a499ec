# The .deb: cpack -G DEB in the build folder, of what is installed there. tools/deb_check.sh tries it.
set(CPACK_GENERATOR DEB)
set(CPACK_MONOLITHIC_INSTALL ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_CONTACT "Contraflow maintainers <maintainers@contraflow.invalid>")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# For programs that link component `runtime`.
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libopenblas-dev, libssl-dev")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "Contraflow compiles pipeline-parallel training schedules into one explicit
list of instructions for each rank, proves that the plan is complete and
cannot deadlock, and predicts its step time, bubbles and memory. A runtime
executes the same plan on CPUs.
.
This package has the tools contraflow and contraflow-run, cost profiles, and
the C++ libraries with their headers.")
set(CPACK_DEBIAN_DOCUMENTS ${CMAKE_CURRENT_LIST_DIR})
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/documents.cmake)
include(CPack)
