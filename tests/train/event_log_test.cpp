#include "train/event_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <fstream>

#include "base/crc32c.h"
#include "support/event_reader.h"

namespace baleen {
namespace {

using testing::read_events;

// RFC 3720, appendix B.4.
TEST(Crc32c, PublishedVectors) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c(""), 0u);
}

class Events : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "baleen_events_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root = name;
    folder = root / "events";
  }
  void TearDown() override { std::filesystem::remove_all(root); }

  static MetricsRow row_of(std::int64_t step) {
    MetricsRow row;
    row.step = step;
    row.loss = 1.0 / static_cast<double>(step);
    row.tokens = 1000 * step;
    return row;
  }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()));
  }
  std::filesystem::path root, folder;
};

TEST_F(Events, RowsComeBackAsScalars) {
  EventLog log(folder, 0);
  log.append(row_of(1));
  log.append(ValidationRow{1, 2.5, 0.75});
  log.append(ValidationRow{300, 2.25});
  const auto events = read_events(folder);  // flushed: the log is still open
  EXPECT_EQ(events.version, "brain.Event:2");
  EXPECT_EQ(events.scalars.at({"loss", 1}), 1.0f);
  EXPECT_EQ(events.scalars.at({"tokens", 1}), 1000.0f);
  EXPECT_EQ(events.scalars.count({"mfu", 1}), 0u);
  EXPECT_EQ(events.scalars.at({"val_loss", 1}), 2.5f);
  EXPECT_EQ(events.scalars.at({"bits_per_byte", 1}), 0.75f);
  EXPECT_EQ(events.scalars.at({"val_loss", 300}), 2.25f);
  EXPECT_EQ(events.scalars.count({"bits_per_byte", 300}), 0u);
  EXPECT_EQ(events.scalars.size(), 12u + 3u);
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  for (const double time : events.wall_times) EXPECT_NEAR(time, now, 100);
}

TEST_F(Events, ResumeDropsRowsPastTheCheckpointAndATornEnd) {
  {
    EventLog log(folder, 0);
    for (int step = 1; step <= 200; ++step) log.append(row_of(step));
  }
  const auto first = std::filesystem::directory_iterator(folder)->path();
  std::filesystem::resize_file(first, std::filesystem::file_size(first) - 3);  // step 200 is torn
  {
    EventLog log(folder, 300);
  }  // nothing to drop but the torn record, and nothing written
  EXPECT_EQ(files(), 1u);
  EXPECT_EQ(read_events(folder).scalars.count({"loss", 199}), 1u);
  EXPECT_EQ(read_events(folder).scalars.count({"loss", 200}), 0u);
  {
    EventLog log(folder, 150);
    for (int step = 151; step <= 160; ++step) log.append(row_of(step));
  }
  const auto events = read_events(folder);  // throws when a step is there twice
  EXPECT_EQ(files(), 2u);
  EXPECT_EQ(events.scalars.count({"loss", 150}), 1u);
  EXPECT_EQ(events.scalars.count({"loss", 160}), 1u);
  EXPECT_EQ(events.scalars.count({"loss", 161}), 0u);
  std::ofstream(folder / "events.out.tfevents.1.other") << "not ours";
  {
    EventLog log(folder, 0);
  }  // --resume never: all of ours goes
  EXPECT_EQ(files(), 1u);
  EXPECT_TRUE(std::filesystem::exists(folder / "events.out.tfevents.1.other"));
}

}  // namespace
}  // namespace baleen
