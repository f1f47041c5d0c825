// What a device could do at most, for the model FLOPs utilisation (MFU).
#pragma once

#include <optional>
#include <string_view>

#include "base/dtype.h"

namespace baleen {

// FLOP/s of dense matrix products in `dtype` (fp32 without TF32), from the vendors' data sheets: NVIDIA H200, H100, A100, B200; AMD MI300X,
// MI250X. Nothing for a device that is not known, processors among them.
std::optional<double> peak_flops(std::string_view device, DType dtype);

// `tflops` of one rank over that peak; NaN where it is not known.
double model_flops_utilisation(double tflops, std::string_view device, DType dtype);

}  // namespace baleen
