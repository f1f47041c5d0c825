// The host's side of copies, and a device that only counts.
#pragma once

#include <memory>

#include "device/device.h"

namespace baleen {

// Memory of the host that `device` copies from and to without waiting: page-locked where it is a GPU. Of a counting device: counted
// likewise.
std::unique_ptr<Device> create_host_memory(const Device& device);

// A device whose allocations are addresses without memory behind them and whose streams run nothing: what is built on it says, through
// allocations() and peak_bytes(), what it would take on a device of the kind of `like`, to the byte. `like` must live as long.
std::unique_ptr<Device> create_counting_device(Device& like);

}  // namespace baleen
