#include "comm/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"

namespace baleen {
namespace {

using ::testing::ElementsAre;

TEST(Mesh, TensorAxisVariesFastestAndPipelineSlowest) {
  const Mesh mesh({.pp = 2, .replicate = 1, .dp = 3, .cp = 1, .tp = 4});
  EXPECT_EQ(mesh.world_size(), 24);
  EXPECT_THAT(mesh.coordinates(0), ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(mesh.coordinates(1), ElementsAre(0, 0, 0, 0, 1));
  EXPECT_THAT(mesh.coordinates(4), ElementsAre(0, 0, 1, 0, 0));
  EXPECT_THAT(mesh.coordinates(12), ElementsAre(1, 0, 0, 0, 0));
  EXPECT_EQ(mesh.coordinate(23, Axis::dp), 2);
  EXPECT_EQ(mesh.degree(Axis::tp), 4);
}

TEST(Mesh, GroupsOfOneAxisAndOfSeveral) {
  const Mesh mesh({.pp = 2, .replicate = 1, .dp = 2, .cp = 1, .tp = 2});
  EXPECT_THAT(mesh.group(5, Axis::tp), ElementsAre(4, 5));
  EXPECT_THAT(mesh.group(5, Axis::dp), ElementsAre(5, 7));
  EXPECT_THAT(mesh.group(5, Axis::pp), ElementsAre(1, 5));
  EXPECT_THAT(mesh.group(5, Axis::cp), ElementsAre(5));
  EXPECT_THAT(mesh.group(5, {Axis::dp, Axis::cp, Axis::tp}), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(mesh.group(5, {Axis::pp, Axis::tp}), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(mesh.group(5, {}), ElementsAre(5));
}

// On a mesh with every axis in use: rank ↔ coordinates is one to one, and the groups of each axis set divide the world.
TEST(Mesh, EveryAxisSetDividesTheWorld) {
  const Mesh mesh({.pp = 2, .replicate = 3, .dp = 2, .cp = 2, .tp = 2});
  for (int rank = 0; rank < mesh.world_size(); ++rank) EXPECT_EQ(mesh.rank_at(mesh.coordinates(rank)), rank);
  for (const Axis first : all_axes)
    for (const Axis second : all_axes) {
      const int size = first == second ? mesh.degree(first) : mesh.degree(first) * mesh.degree(second);
      std::set<std::vector<int>> groups;
      for (int rank = 0; rank < mesh.world_size(); ++rank) {
        const auto group = mesh.group(rank, {first, second});
        EXPECT_EQ(static_cast<int>(group.size()), size);
        EXPECT_THAT(group, ::testing::Contains(rank));
        groups.insert(group);
      }
      EXPECT_EQ(static_cast<int>(groups.size()) * size, mesh.world_size());
    }
}

TEST(Mesh, RefusesDegreesThatMakeNoGrid) {
  try {
    const Mesh mesh({.dp = 0});
    FAIL() << "a degree of 0 was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_config);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("axis dp is 0"));
  }
  EXPECT_THROW(Mesh({.pp = 1 << 16, .dp = 1 << 16}), Error);
}

}  // namespace
}  // namespace baleen
