# SPDX-License-Identifier: Apache-2.0
# libckv (shared, only ckv/*.h exported), the transports, and ckv_internal: the same objects for tests that look inside.
# Folders add their sources with ckv_sources(); the library is put together once, here.
# The way back from the folder of the .pc files to the prefix, so that a moved prefix still works: lib, lib64 or lib/TRIPLET.
file(RELATIVE_PATH CKV_PC_PREFIX /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
string(REGEX REPLACE "/$" "" CKV_PC_PREFIX ${CKV_PC_PREFIX})
find_package(Threads REQUIRED)
get_property(sources GLOBAL PROPERTY CKV_SOURCES)

add_library(ckv_objects OBJECT ${sources})
target_link_libraries(ckv_objects PRIVATE ckv_flags)
target_include_directories(ckv_objects PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/lib/include> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
target_compile_definitions(ckv_objects PRIVATE CKV_BUILDING_LIBRARY)

# The runtime is part of the library and none of its interface; it looks for the driver when it is first called.
set(ckv_cuda_libraries "")
if(CKV_HAVE_CUDA)
  set(ckv_cuda_libraries CUDA::cudart_static)
  target_compile_definitions(ckv_objects PRIVATE CKV_HAVE_CUDA)
  target_include_directories(ckv_objects SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
endif()
if(CKV_HAVE_CUDNN) # finds the driver itself when it is first used
  list(APPEND ckv_cuda_libraries ckv_cudnn)
  target_compile_definitions(ckv_objects PRIVATE CKV_HAVE_CUDNN)
  target_include_directories(ckv_objects SYSTEM PRIVATE ${CUDNN_INCLUDE_DIR})
endif()

add_library(ckv SHARED $<TARGET_OBJECTS:ckv_objects>)
add_library(ckv::ckv ALIAS ckv)
target_include_directories(ckv PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/lib/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(ckv PRIVATE $<BUILD_INTERFACE:ckv_flags> "$<BUILD_INTERFACE:${ckv_cuda_libraries}>" m Threads::Threads)
target_link_options(ckv PRIVATE LINKER:--exclude-libs,ALL LINKER:--as-needed)
set_target_properties(ckv PROPERTIES LINKER_LANGUAGE C VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})

add_library(ckv_internal STATIC EXCLUDE_FROM_ALL $<TARGET_OBJECTS:ckv_objects>)
target_include_directories(ckv_internal PUBLIC ${PROJECT_SOURCE_DIR}/lib/include ${PROJECT_SOURCE_DIR})
target_link_libraries(ckv_internal PUBLIC ckv_flags ${ckv_cuda_libraries} m Threads::Threads)
set_target_properties(ckv_internal PROPERTIES LINKER_LANGUAGE C)

install(TARGETS ckv EXPORT ckvTargets)
install(DIRECTORY lib/include/ckv DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
ckv_add_transports()

install(EXPORT ckvTargets NAMESPACE ckv:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ckv)
configure_package_config_file(cmake/ckvConfig.cmake.in ckvConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ckv)
write_basic_package_version_file(ckvConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ckvConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/ckvConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ckv)
configure_file(cmake/ckv.pc.in ckv.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ckv.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
