// Loads the matrix library by name: it is a large package that a machine without a GPU need not have.
#include <dlfcn.h>

#include <string>

#include "base/error.h"
#include "device/gpu_api.h"

namespace baleen {
namespace {

void* open_library() {
  // Its own name first (the loader's paths, LD_LIBRARY_PATH), then where the toolkit was when this was built.
  for (const char* name : {BALEEN_GPU_BLAS_NAME, BALEEN_GPU_BLAS_PATH})
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL); library != nullptr) return library;
  throw Error(ExitCode::bad_config, std::string("the GPU's matrix library cannot be loaded: ") + dlerror(), BALEEN_GPU_BLAS_NAME,
              "install it, or add its folder to LD_LIBRARY_PATH");
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr)
    throw Error(ExitCode::bad_config, std::string("the GPU's matrix library has no ") + name, BALEEN_GPU_BLAS_NAME,
                "install the version this build was made for");
}

GpuBlasFunctions load() {
  void* library = open_library();  // stays loaded: products may run until the process ends
  GpuBlasFunctions functions;
  find(library, "cublasLtCreate", functions.create);
  find(library, "cublasLtDestroy", functions.destroy);
  find(library, "cublasLtMatmul", functions.matmul);
  find(library, "cublasLtMatmulAlgoGetHeuristic", functions.heuristic);
  find(library, "cublasLtMatmulAlgoCheck", functions.check);
  find(library, "cublasLtGetVersion", functions.version);
  find(library, "cublasLtMatmulDescCreate", functions.desc_create);
  find(library, "cublasLtMatmulDescDestroy", functions.desc_destroy);
  find(library, "cublasLtMatmulDescSetAttribute", functions.desc_set);
  find(library, "cublasLtMatrixLayoutCreate", functions.layout_create);
  find(library, "cublasLtMatrixLayoutDestroy", functions.layout_destroy);
  find(library, "cublasLtMatmulPreferenceCreate", functions.preference_create);
  find(library, "cublasLtMatmulPreferenceDestroy", functions.preference_destroy);
  find(library, "cublasLtMatmulPreferenceSetAttribute", functions.preference_set);
  return functions;
}

}  // namespace

const GpuBlasFunctions& gpu_blas() {
  static const GpuBlasFunctions functions = load();
  return functions;
}

}  // namespace baleen
