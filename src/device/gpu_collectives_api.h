// The GPU vendor's collective library: NCCL, or RCCL, which exports the same names from a header of its own. Included by comm/nccl alone.
#pragma once

#include "device/gpu_api.h"

#if defined(__HIP_PLATFORM_AMD__)
#include <rccl/rccl.h>
#else
#include <nccl.h>
#endif
