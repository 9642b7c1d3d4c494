# Gives ONNX Runtime's CMake the libraries of this system in place of downloads, without a change to its source tree.
#
# CMake (3.24 and newer) calls a "dependency provider" before FetchContent downloads anything. ONNX Runtime asks for its
# dependencies by the names of cmake/external/onnxruntime_external_deps.cmake; each is answered here with the package
# that a distribution ships, under the target names that ONNX Runtime links. Passed as CMAKE_PROJECT_TOP_LEVEL_INCLUDES.
#
# Not answered here: onnx (a minimal build compiles three of its files: FETCHCONTENT_SOURCE_DIR_ONNX names its source)
# and safeint (found by its header: CMAKE_INCLUDE_PATH).

set(ORT_MOBILE_MISSING "ort-mobile: missing system dependency")

macro(ort_mobile_found name package)
  if(NOT TARGET ${name})
    message(FATAL_ERROR "${ORT_MOBILE_MISSING}: ${package} (no CMake target ${name})")
  endif()
endmacro()

# re2 ships a pkg-config file everywhere, a CMake package only in some distributions.
macro(ort_mobile_re2)
  find_package(re2 CONFIG QUIET)
  if(NOT TARGET re2::re2)
    find_package(PkgConfig REQUIRED)
    pkg_check_modules(ORT_MOBILE_RE2 QUIET IMPORTED_TARGET GLOBAL re2)
    if(TARGET PkgConfig::ORT_MOBILE_RE2)
      add_library(re2::re2 ALIAS PkgConfig::ORT_MOBILE_RE2)
    endif()
  endif()
  ort_mobile_found(re2::re2 libre2-dev)
endmacro()

macro(ort_mobile_flatbuffers)
  find_package(FlatBuffers CONFIG QUIET)
  if(NOT FlatBuffers_FOUND)
    find_package(flatbuffers CONFIG QUIET)
  endif()
  set(flatbuffers_FOUND ${FlatBuffers_FOUND})
  ort_mobile_found(flatbuffers::flatbuffers libflatbuffers-dev)
endmacro()

# ONNX Runtime from 1.19 on calls min<PropagateNaN>, which Eigen has since its development version 3.4.90.
macro(ort_mobile_eigen)
  find_package(Eigen3 CONFIG QUIET)
  ort_mobile_found(Eigen3::Eigen libeigen3-dev)
  if(Eigen3_VERSION VERSION_LESS 3.4.90)
    message(FATAL_ERROR "${ORT_MOBILE_MISSING}: libeigen3-dev (Eigen ${Eigen3_VERSION} is too old: 3.4.90 or newer)")
  endif()
endmacro()

macro(ort_mobile_mp11)
  find_package(Boost CONFIG QUIET)
  ort_mobile_found(Boost::headers libboost-dev)
  if(NOT TARGET Boost::mp11)
    add_library(Boost::mp11 ALIAS Boost::headers)
  endif()
endmacro()

macro(ort_mobile_package target package)
  find_package(${ARGN} QUIET)
  ort_mobile_found(${target} ${package})
endmacro()

macro(ort_mobile_provide method name)
  string(TOLOWER ${name} ORT_MOBILE_NAME)
  if(ORT_MOBILE_NAME STREQUAL "abseil_cpp")
    ort_mobile_package(absl::base libabsl-dev absl CONFIG)
    set(abseil_cpp_VERSION ${absl_VERSION})
  elseif(ORT_MOBILE_NAME STREQUAL "re2")
    ort_mobile_re2()
  elseif(ORT_MOBILE_NAME STREQUAL "protobuf")
    ort_mobile_package(protobuf::libprotobuf-lite libprotobuf-dev Protobuf MODULE)
    ort_mobile_found(protobuf::protoc protobuf-compiler)
  elseif(ORT_MOBILE_NAME STREQUAL "date")
    ort_mobile_package(date::date libhowardhinnant-date-dev date CONFIG)
  elseif(ORT_MOBILE_NAME STREQUAL "mp11")
    ort_mobile_mp11()
  elseif(ORT_MOBILE_NAME STREQUAL "nlohmann_json")
    ort_mobile_package(nlohmann_json::nlohmann_json nlohmann-json3-dev nlohmann_json CONFIG)
  elseif(ORT_MOBILE_NAME STREQUAL "pytorch_cpuinfo")
    ort_mobile_package(cpuinfo::cpuinfo libcpuinfo-dev cpuinfo CONFIG)
  elseif(ORT_MOBILE_NAME STREQUAL "gsl")
    ort_mobile_package(Microsoft.GSL::GSL libmsgsl-dev Microsoft.GSL CONFIG)
  elseif(ORT_MOBILE_NAME STREQUAL "flatbuffers")
    ort_mobile_flatbuffers()
  elseif(ORT_MOBILE_NAME STREQUAL "eigen" OR ORT_MOBILE_NAME STREQUAL "eigen3")
    ort_mobile_eigen()
  elseif(ORT_MOBILE_NAME STREQUAL "dlpack")
    ort_mobile_package(dlpack::dlpack libdlpack-dev dlpack CONFIG)
  elseif(NOT ORT_MOBILE_NAME STREQUAL "utf8_range") # of a system's protobuf it is a part
    message(FATAL_ERROR "${ORT_MOBILE_MISSING}: ${name} (not known here; build it with downloads)")
  endif()
  FetchContent_SetPopulated(${name})
endmacro()

cmake_language(SET_DEPENDENCY_PROVIDER ort_mobile_provide SUPPORTED_METHODS FETCHCONTENT_MAKEAVAILABLE_SERIAL)
