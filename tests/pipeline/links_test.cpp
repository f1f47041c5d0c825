#include "pipeline/links.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "comm/idle_communicator.h"

namespace baleen::testing {
namespace {

// Tells when it goes.
class Mortal final : public IdleCommunicator {
 public:
  Mortal(int rank, int size, int number, std::vector<int>& gone) : IdleCommunicator(rank, size, "pp"), number_(number), gone_(gone) {}
  ~Mortal() override { gone_.push_back(number_); }

 private:
  int number_;
  std::vector<int>& gone_;
};

// NCCL's communicators end together: a member waits for the other. Ranks that end theirs in different orders wait for each other for ever.
TEST(PipelineLinks, EndInTheOrderInWhichAllRanksMadeThem) {
  for (int count = 2; count <= 6; ++count)
    for (const bool ring : {false, true}) {
      std::vector<int> stages;
      for (int stage = 0; stage < count; ++stage) stages.push_back(stage);
      std::vector<std::vector<int>> gone(stages.size());   // by rank: the calls that made what went, in the order of going
      std::map<std::vector<int>, std::vector<int>> links;  // by members: the calls, on each of them
      for (const int rank : stages) {
        int calls = 0;
        {
          const PipelineLinks made(
              [&](const std::vector<int>& ranks, const std::string&) -> std::unique_ptr<Communicator> {
                const int call = calls++;
                if (ranks.empty()) return nullptr;
                links[ranks].push_back(call);
                return std::make_unique<Mortal>(ranks.front() == rank ? 0 : 1, 2, call, gone[static_cast<std::size_t>(rank)]);
              },
              rank, stages, ring);
        }
        EXPECT_TRUE(std::is_sorted(gone[static_cast<std::size_t>(rank)].begin(), gone[static_cast<std::size_t>(rank)].end()))
            << count << ring;
      }
      for (auto& [ranks, calls] : links) {  // both members made it by the same call
        std::map<int, int> times;
        for (const int call : calls) ++times[call];
        for (const auto& [call, made] : times) EXPECT_EQ(made, 2) << count << ring;
      }
    }
}

}  // namespace
}  // namespace baleen::testing
