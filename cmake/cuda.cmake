# Sets BALEEN_GPU when the GPU parts are built. The runtime is linked statically and the matrix library is loaded when first used, so that the
# binary starts where there is no GPU, no driver and no toolkit.
set(BALEEN_CUDA AUTO CACHE STRING "NVIDIA GPUs: AUTO (where nvcc is found), ON or OFF")
set_property(CACHE BALEEN_CUDA PROPERTY STRINGS AUTO ON OFF)
set(BALEEN_GPU OFF)

if(NOT BALEEN_CUDA STREQUAL "OFF")
  find_program(BALEEN_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(BALEEN_NVCC)
    set(BALEEN_GPU ON)
  elseif(NOT BALEEN_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "BALEEN_CUDA is ${BALEEN_CUDA}, but nvcc is not found; add its folder to PATH or set BALEEN_CUDA to AUTO")
  endif()
endif()

if(BALEEN_GPU)
  set(CMAKE_CUDA_COMPILER ${BALEEN_NVCC} CACHE FILEPATH "nvcc")
  set(CMAKE_CUDA_ARCHITECTURES 90a-real)  # Hopper; device/gpu/gpu_device.cpp refuses others by name
  if(BALEEN_CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${BALEEN_CCACHE})
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  # CMake 3.25 does not know that nvcc reads C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  target_compile_options(baleen_options INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-Wshadow>)
endif()

# Fused attention comes from the vendor's library, described through headers that scripts/fetch-gpu-headers.sh fetches. The library
# itself is loaded when first used; a build without the headers has the simpler kernels of its own alone.
set(BALEEN_ATTENTION_HEADERS ${PROJECT_SOURCE_DIR}/build/cudnn-frontend/include CACHE PATH "folder of cudnn_frontend.h")
function(baleen_use_gpu_attention target)
  find_path(BALEEN_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(NOT EXISTS ${BALEEN_ATTENTION_HEADERS}/cudnn_frontend.h OR NOT BALEEN_CUDNN_INCLUDE)
    message(STATUS "GPU attention: simple kernels (scripts/fetch-gpu-headers.sh and cudnn.h give the library's)")
    return()
  endif()
  message(STATUS "GPU attention: cuDNN")
  set(source ${PROJECT_SOURCE_DIR}/src/ops/gpu/attention_library.cpp)
  set_property(SOURCE ${source} DIRECTORY ${PROJECT_SOURCE_DIR}/src APPEND PROPERTY COMPILE_DEFINITIONS
    BALEEN_GPU_ATTENTION="libcudnn.so.9" BALEEN_GPU_ATTENTION_PATH="${CUDAToolkit_LIBRARY_DIR}/libcudnn.so.9")
  # A minute and two gigabytes at -O2, for code that only describes a graph.
  set_property(SOURCE ${source} DIRECTORY ${PROJECT_SOURCE_DIR}/src APPEND PROPERTY COMPILE_OPTIONS
    -O1 -isystem ${BALEEN_ATTENTION_HEADERS} -isystem ${BALEEN_CUDNN_INCLUDE})
endfunction()

# Products with an own ending are built from CUTLASS, whose headers the same script fetches; a build without them writes what the product
# gives and reads it again.
set(BALEEN_CUTLASS_HEADERS ${PROJECT_SOURCE_DIR}/build/cutlass/include CACHE PATH "folder of cutlass/cutlass.h")
function(baleen_use_fused_products target)
  if(NOT EXISTS ${BALEEN_CUTLASS_HEADERS}/cutlass/cutlass.h)
    message(STATUS "GPU products: the library's (scripts/fetch-gpu-headers.sh gives those with SwiGLU in one kernel)")
    return()
  endif()
  message(STATUS "GPU products: the library's, and with SwiGLU in one kernel")
  foreach(name matmul_swiglu matmul_swiglu_backward)
    set(source ${PROJECT_SOURCE_DIR}/src/ops/gpu/${name}.cu)
    set_property(SOURCE ${source} DIRECTORY ${PROJECT_SOURCE_DIR}/src APPEND PROPERTY COMPILE_DEFINITIONS BALEEN_FUSED_PRODUCTS)
    set_property(SOURCE ${source} DIRECTORY ${PROJECT_SOURCE_DIR}/src APPEND PROPERTY COMPILE_OPTIONS -isystem ${BALEEN_CUTLASS_HEADERS})
  endforeach()
endfunction()

# What device/, the lowest folder that knows GPUs, hands up to the others.
function(baleen_use_gpu target)
  target_compile_definitions(${target} PUBLIC BALEEN_GPU=1)
  target_compile_definitions(${target} PRIVATE
    BALEEN_GPU_BLAS_NAME="libcublasLt.so.${CUDAToolkit_VERSION_MAJOR}"
    BALEEN_GPU_BLAS_PATH="${CUDAToolkit_LIBRARY_DIR}/libcublasLt.so.${CUDAToolkit_VERSION_MAJOR}")
  target_link_libraries(${target} PUBLIC CUDA::cudart_static)
  target_include_directories(${target} SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS})
endfunction()
# Collectives between GPUs: the library's header at build time, the library itself when first used.
set(BALEEN_NCCL OFF)
if(BALEEN_GPU)
  find_path(BALEEN_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(BALEEN_NCCL_INCLUDE)
    set(BALEEN_NCCL ON)
  endif()
endif()
function(baleen_use_nccl target)
  target_include_directories(${target} SYSTEM PRIVATE ${BALEEN_NCCL_INCLUDE})
  target_compile_definitions(${target} PRIVATE BALEEN_NCCL_NAME="libnccl.so.2" BALEEN_NCCL_PATH="${CUDAToolkit_LIBRARY_DIR}/libnccl.so.2")
endfunction()
message(STATUS "GPU support: ${BALEEN_GPU}, NCCL: ${BALEEN_NCCL}")
