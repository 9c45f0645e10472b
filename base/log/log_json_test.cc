#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>

#include "gradwire/base/log/log.h"

// The log of a process that runs with GRADWIRE_LOG_FORMAT=json, GRADWIRE_LOG_LEVEL=info and RANK=3.
namespace gradwire {
namespace {

thread_local std::string current_worker;

nlohmann::json record_of(const std::string& message, int* line) {
  ::testing::internal::CaptureStderr();
  *line = __LINE__ + 1;
  log(LogLevel::kWarning, message);
  return nlohmann::json::parse(::testing::internal::GetCapturedStderr());
}

TEST(JsonLog, LineIsAnObject) {
  int line = 0;
  nlohmann::json record = record_of("a \"b\"\nc", &line);
  EXPECT_EQ(record["message"], "a \"b\"\nc");
  EXPECT_EQ(record["level"], "warning");
  EXPECT_EQ(record["pid"], getpid());
  EXPECT_EQ(record["rank"], 3);
  EXPECT_EQ(record["source"], "base/log/log_json_test.cc:" + std::to_string(line));
  EXPECT_FALSE(record.contains("worker"));
}

TEST(JsonLog, WorkerIsThatOfTheThread) {
  int line = 0;
  set_log_worker_source([] { return current_worker; });
  current_worker = "ps";
  EXPECT_EQ(record_of("m", &line)["worker"], "ps");
  {
    const LogWorkerScope outer("starting");
    { const LogWorkerScope inner("inner"); }
    EXPECT_EQ(record_of("m", &line)["worker"], "starting");
  }
  EXPECT_EQ(record_of("m", &line)["worker"], "ps");
  current_worker = "";
  EXPECT_FALSE(record_of("m", &line).contains("worker"));
}

}  // namespace
}  // namespace gradwire
