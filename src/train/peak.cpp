#include "train/peak.h"

#include <array>
#include <limits>

namespace baleen {
namespace {

struct Peak {
  std::string_view name;  // part of the name that the runtime gives
  double bf16, fp32;      // TFLOP/s
};

// The variants of one chip differ: what says more comes first.
constexpr std::array<Peak, 9> peaks{{{"H200 NVL", 835.5, 60.0},
                                     {"H200", 989.4, 66.9},  // and GH200
                                     {"H100 PCIe", 756.5, 51.2},
                                     {"H100 NVL", 835.5, 60.0},
                                     {"H100", 989.4, 66.9},
                                     {"B200", 2250.0, 75.0},
                                     {"A100", 312.0, 19.5},
                                     {"MI300X", 1307.4, 163.4},
                                     {"MI250X", 191.5, 47.9}}};  // of one of its two dies, which is a device

}  // namespace

std::optional<double> peak_flops(std::string_view device, DType dtype) {
  for (const Peak& peak : peaks)
    if (device.find(peak.name) != std::string_view::npos) return 1e12 * (dtype == DType::bf16 ? peak.bf16 : peak.fp32);
  return std::nullopt;
}

double model_flops_utilisation(double tflops, std::string_view device, DType dtype) {
  const std::optional<double> peak = peak_flops(device, dtype);
  return peak ? 1e12 * tflops / *peak : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace baleen
