// A port of the loopback interface for one test, while other tests run beside it.
#pragma once

#include <cstdint>

#include "base/descriptor.h"

namespace baleen::testing {

// Holds a bound socket that does not listen: whoever asks for this very port with SO_REUSEADDR can listen there, and the system gives it to
// nobody who asks for any free port, or connects from one.
class ReservedPort {
 public:
  ReservedPort();
  std::uint16_t number() const { return number_; }

 private:
  Descriptor holder_;
  std::uint16_t number_ = 0;
};

}  // namespace baleen::testing
