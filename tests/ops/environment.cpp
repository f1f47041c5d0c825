// Every test of this folder begins with the number of threads that its sanitizer can bear, whatever OMP_NUM_THREADS says.
#include "ops/support.h"

namespace baleen::ops::testing {
namespace {

class Environment : public ::testing::Environment {
 public:
  void SetUp() override { set_threads(most_threads); }
};

[[maybe_unused]] const ::testing::Environment* const registered = ::testing::AddGlobalTestEnvironment(new Environment);

}  // namespace
}  // namespace baleen::ops::testing
