# Installs the build to a temporary prefix, builds the consumer project against it and runs it.
# cmake -DBUILD=... -DSOURCE=... -DCXX=... -DFLAGS=... -P consumer.cmake
set(at ${BUILD}/consumer)
file(REMOVE_RECURSE ${at})
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE code)
  if(code)
    list(JOIN ARGV " " line)
    message(FATAL_ERROR "exit code ${code}: ${line}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${at}/prefix --component devel)
# Another place than where it was installed: the package must not know its prefix.
file(RENAME ${at}/prefix ${at}/moved)
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${at}/build -G Ninja -DCMAKE_PREFIX_PATH=${at}/moved
    -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_CXX_FLAGS=${FLAGS})
run(${CMAKE_COMMAND} --build ${at}/build)
run(${at}/build/consumer)
run(${at}/build/layers)
