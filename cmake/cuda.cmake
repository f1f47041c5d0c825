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

# What device/, the lowest folder that knows GPUs, hands up to the others.
function(baleen_use_gpu target)
  target_compile_definitions(${target} PUBLIC BALEEN_GPU=1)
  target_compile_definitions(${target} PRIVATE
    BALEEN_GPU_BLAS_NAME="libcublasLt.so.${CUDAToolkit_VERSION_MAJOR}"
    BALEEN_GPU_BLAS_PATH="${CUDAToolkit_LIBRARY_DIR}/libcublasLt.so.${CUDAToolkit_VERSION_MAJOR}")
  target_link_libraries(${target} PUBLIC CUDA::cudart_static)
  target_include_directories(${target} SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS})
endfunction()
message(STATUS "GPU support: ${BALEEN_GPU}")
