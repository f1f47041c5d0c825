#include "device/gpu.h"
#include "gpu/peer_programs.h"

int main(int argc, char** argv) {
  baleen::prepare_gpus();
  return baleen::testing::run_tests_or_rank(argc, argv, baleen::testing::peer_programs());
}
