#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

// The bench itself, for a moment: what it measures is noise, that it measures everybody is not.
namespace gradwire::bench {
namespace {

using testing::HasSubstr;
using testing::IsSupersetOf;

std::string read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

int run_bench(const std::string& arguments) {
  return std::system(("tools/bench/bench " + arguments + " >/dev/null").c_str());
}

TEST(Bench, MeasuresEverySideOfEverySuite) {
  const std::string json = testing::TempDir() + "/figures.json";
  const std::string html = testing::TempDir() + "/figures.html";
  ASSERT_EQ(
      run_bench(
          "--suite=rpc,rref,autograd,store,transport --transports=tcp --peers=torch,grpc --seconds=0.05 "
          "--rounds=1 --cases=add2,echo_64KiB,push_pull_1MiB,cycle,remote_add,set_get,ping --json=" +
          json + " --html=" + html),
      0);
  std::set<std::string> compared;
  std::ifstream lines(json);
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json row = nlohmann::json::parse(line);
    EXPECT_GT(row.at("gradwire").get<double>(), 0) << line;
    if (row.at("peer").is_null() || row.at("metric") != "p50_us") continue;
    EXPECT_GT(row.at("ratio").get<double>(), 0) << line;
    compared.insert(row.at("case").get<std::string>() + " " + row.at("peer").get<std::string>());
  }
  EXPECT_THAT(compared,
              IsSupersetOf({"add2 torch_tensorpipe", "add2 grpc", "add2 floor_tcp", "echo_64KiB grpc",
                            "echo_64KiB torch_tensorpipe", "push_pull_1MiB torch_tensorpipe",
                            "cycle torch_tensorpipe", "remote_add torch_tensorpipe", "set_get torch_store",
                            "ping floor_tcp"}));
  EXPECT_THAT(read(html), HasSubstr("torch_tensorpipe"));
}

TEST(Bench, RefusesWhatItDoesNotKnow) { EXPECT_NE(run_bench("--suite=rpc --cases=nothing 2>/dev/null"), 0); }

}  // namespace
}  // namespace gradwire::bench
