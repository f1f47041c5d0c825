#include "launch/rank_programs.h"
#include "parallel/collective_programs.h"

int main(int argc, char** argv) {
  return baleen::testing::run_tests_or_rank(argc, argv, baleen::testing::collective_programs());
}
