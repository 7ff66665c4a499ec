# Installs the build into staging folders, builds tests/consumer against it and runs it: the component
# `compiler` where nothing that executes plans can be found, and the runtime where it is built.
# cmake -DBUILD_DIR=... -DSOURCE_DIR=... -DWORK_DIR=... -DGENERATOR=... -DCXX=...
#       -DRUNTIME=ON|OFF [-DCUDA=<toolkit>] -DHARDENED=ON|OFF -P this
function(step)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "${command}\n${output}")
  endif()
  message(STATUS "${output}")
endfunction()
# consume(<source> <stage> <program> [<option>...])
function(consume source stage program)
  step(${CMAKE_COMMAND} -S ${source} -B ${WORK_DIR}/${program} -G ${GENERATOR}
       -DCMAKE_PREFIX_PATH=${stage} -DCMAKE_CXX_COMPILER=${CXX} ${ARGN})
  step(${CMAKE_COMMAND} --build ${WORK_DIR}/${program})
  step(${WORK_DIR}/${program}/${program})
endfunction()

# check_run_path(<program>...): only absolute folders, else who writes to the current one runs code.
function(check_run_path)
  foreach(program IN LISTS ARGV)
    execute_process(COMMAND readelf -d ${program} OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
    if(dynamic MATCHES "R(UN)?PATH\\)[^[]*\\[([^]\n]*)\\]")
      set(path "${CMAKE_MATCH_2}")
      if(NOT path MATCHES "^/[^:]*(:/[^:]*)*$")
        message(FATAL_ERROR "${program} has the run path \"${path}\"")
      endif()
    endif()
  endforeach()
endfunction()

# check_hardened(<program>...): as the release is built.
function(check_hardened)
  foreach(program IN LISTS ARGV)
    execute_process(COMMAND readelf --wide -hld --dyn-syms ${program} OUTPUT_VARIABLE elf
      COMMAND_ERROR_IS_FATAL ANY)
    foreach(sign "Type: +DYN" "GNU_RELRO" "FLAGS.* BIND_NOW|FLAGS_1.* NOW" "GNU_STACK.* RW  "
                 "__stack_chk_fail" "__mem[a-z]*_chk|__[a-z]*printf_chk" "__glibcxx_assert_fail")
      if(NOT elf MATCHES "${sign}")
        message(FATAL_ERROR "${program} is not hardened: nothing matches ${sign}")
      endif()
    endforeach()
  endforeach()
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
set(stage ${WORK_DIR}/stage)
step(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${stage} --component compiler)
set(none "")
foreach(package BLAS OpenSSL MPI CUDAToolkit Boost nlohmann_json CLI11)
  list(APPEND none -DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
endforeach()
consume(${SOURCE_DIR}/consumer ${stage} consumer ${none})
# The installed tool finds the installed profiles.
step(${stage}/bin/contraflow costs deepseek-v3-h800)
# So do man and shells what it says about itself.
foreach(file share/man/man1/contraflow.1 share/bash-completion/completions/contraflow)
  file(STRINGS ${stage}/${file} lines REGEX "--|costs")
  if(NOT lines)
    message(FATAL_ERROR "${file} says nothing")
  endif()
endforeach()
# The same consumer with pkg-config and no CMake.
find_program(PKG_CONFIG pkg-config)
if(PKG_CONFIG)
  file(GLOB pc ${stage}/lib*/pkgconfig ${stage}/lib*/*/pkgconfig)
  list(GET pc 0 pc)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${pc}
      ${PKG_CONFIG} --cflags --libs contraflow
    OUTPUT_VARIABLE flags COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  step(${CXX} -std=c++20 ${SOURCE_DIR}/consumer/main.cc -o ${WORK_DIR}/by_pkg_config ${flags})
  step(${WORK_DIR}/by_pkg_config)
endif()
# The package has of our own headers the public ones and what they include, and none of the runtime.
file(GLOB_RECURSE headers RELATIVE ${stage}/include ${stage}/include/*)
list(LENGTH headers count)
if(count GREATER 40 OR headers MATCHES "runtime/|kernels/")
  message(FATAL_ERROR "${count} headers are installed for the compiler: ${headers}")
endif()

if(RUNTIME)
  step(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/whole)
  consume(${SOURCE_DIR}/consumer/runtime ${WORK_DIR}/whole trainer)
  if(CUDA)
    # The execution core needs CUDA alone.
    list(REMOVE_ITEM none -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON)
    consume(${SOURCE_DIR}/consumer/exec ${WORK_DIR}/whole issuer ${none} -DCUDAToolkit_ROOT=${CUDA})
  endif()
endif()
file(GLOB programs ${BUILD_DIR}/tools/contraflow ${BUILD_DIR}/tools/contraflow-run*
     ${stage}/bin/* ${WORK_DIR}/whole/bin/*)
check_run_path(${programs})
if(HARDENED)
  check_hardened(${programs})
endif()
