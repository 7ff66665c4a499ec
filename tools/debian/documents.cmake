# Puts into the files of a package what only Debian wants: copyright, changelog, the reasons for what
# lintian would not have; manual pages are packed there. Run by cpack.
set(share ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/usr/share)
set(documents ${share}/doc/${CPACK_PACKAGE_NAME})
configure_file(${CPACK_DEBIAN_DOCUMENTS}/copyright ${documents}/copyright COPYONLY)
configure_file(${CPACK_DEBIAN_DOCUMENTS}/changelog ${documents}/changelog COPYONLY)
configure_file(${CPACK_DEBIAN_DOCUMENTS}/lintian-overrides
  ${share}/lintian/overrides/${CPACK_PACKAGE_NAME} COPYONLY)
# The CUDA program needs CUDA's libraries, which Debian has not; who has them builds it.
file(REMOVE ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/usr/bin/contraflow-run-cuda)
file(GLOB pages ${share}/man/man*/*)
execute_process(COMMAND gzip -9n ${documents}/changelog ${pages} COMMAND_ERROR_IS_FATAL ANY)
