#include "train/metrics.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace baleen {
namespace {

class Metrics : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    path = std::filesystem::temp_directory_path() / (std::string("baleen-metrics-") + test->name() + std::to_string(getpid()));
    std::filesystem::remove(path);
  }
  void TearDown() override { std::filesystem::remove(path); }
  std::filesystem::path path;
};

MetricsRow row_of(std::int64_t step, double loss) {
  MetricsRow row;
  row.step = step;
  row.loss = loss;
  return row;
}

TEST_F(Metrics, DoublesRoundTripAndNonFiniteOnesAreNull) {
  {
    MetricsLog log(path, 0);
    log.append(row_of(1, 0.1 + 0.2));
    log.append(row_of(2, std::numeric_limits<double>::infinity()));
  }
  std::istringstream lines(read_file(path));
  std::string first, second;
  std::getline(lines, first);
  std::getline(lines, second);
  EXPECT_EQ(parse_json(first, "test")["loss"].get<double>(), 0.1 + 0.2);
  EXPECT_TRUE(parse_json(second, "test")["loss"].is_null());
}

TEST_F(Metrics, ResumeDropsTornAndLaterRows) {
  {
    MetricsLog log(path, 0);
    for (int step = 1; step <= 5; ++step) log.append(row_of(step, step));
    log.append(ValidationRow{4, 1.5});
  }
  std::ofstream(path, std::ios::app) << R"({"step":6,"lo)";
  {
    MetricsLog log(path, 4);
  }
  std::istringstream lines(read_file(path));
  std::vector<int> steps;
  for (std::string line; std::getline(lines, line);) steps.push_back(parse_json(line, "test")["step"].get<int>());
  EXPECT_EQ(steps, (std::vector<int>{1, 2, 3, 4, 4}));
}

TEST_F(Metrics, APathThatCannotBeWrittenIsAnError) {
  EXPECT_THROW(MetricsLog("/nonexistent/metrics.jsonl", 0), Error);
}

}  // namespace
}  // namespace baleen
