#include "launch/launcher_programs.h"
#include "launch/rank_programs.h"

int main(int argc, char** argv) {
  return baleen::testing::run_tests_or_rank(argc, argv, baleen::testing::launcher_programs());
}
