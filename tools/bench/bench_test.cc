#include <sys/wait.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

// Runs the bench for a moment. The measured figures are noise; the tests check that every system has figures.
namespace gradwire::bench {
namespace {

using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

std::string read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

int run_bench(const std::string& arguments) {
  return std::system(("tools/bench/bench " + arguments + " >/dev/null").c_str());
}

// Returns the figures of a --json file, and checks that its first line describes the machine.
std::vector<nlohmann::json> figures(const std::string& path) {
  std::vector<nlohmann::json> rows;
  std::ifstream lines(path);
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  EXPECT_FALSE(rows.empty()) << path;
  if (rows.empty()) return rows;
  EXPECT_NE(rows[0].at("machine").at("processor").get<std::string>(), "") << rows[0];
  rows.erase(rows.begin());
  return rows;
}

TEST(Bench, CalibrationPrintsTheCostsOfCopies) {
  const std::string output = ::testing::TempDir() + "/calibration.txt";
  ASSERT_EQ(std::system(("tools/bench/bench --calibration >" + output).c_str()), 0);
  EXPECT_THAT(read(output), HasSubstr("chosen"));
  EXPECT_THAT(read(output), ContainsRegex("16 MiB +[0-9.]+ \\+ [0-9.]+"));
}

TEST(Bench, MeasuresTheLossOfWorkersWithReferences) {
  const std::string json = ::testing::TempDir() + "/lose.json";
  ASSERT_EQ(run_bench("--suite=rref --peers= --rounds=1 --cases=lose_1000 --json=" + json), 0);
  std::set<std::string> metrics;
  for (const nlohmann::json& row : figures(json)) metrics.insert(row.at("metric"));
  EXPECT_THAT(metrics, IsSupersetOf({"p50_us"}));
}

TEST(Bench, MeasuresEverySystemOfEverySuite) {
  const std::string json = ::testing::TempDir() + "/figures.json";
  const std::string html = ::testing::TempDir() + "/figures.html";
  ASSERT_EQ(
      run_bench(
          "--suite=rpc,rref,autograd,store,transport,scale --transports=tcp --peers=torch,grpc "
          "--seconds=0.05 "
          "--rounds=1 "
          "--cases=null,inflight_null,stream_4KiB,add2,add2_every_500us_2_per_core,train_step,echo_64KiB,"
          "push_pull_1MiB,cycle,share,killed_peer,remote_add,chain_4,fanout_8,"
          "mlp_2,set_get,ping,all_to_all_3,clients_40 --json=" +
          json + " --html=" + html),
      0);
  const std::set<std::string> kTails = {"p99_us", "p999_us", "cpu_us_per_call", "GB_per_s"};
  std::set<std::string> alone, compared;
  for (const nlohmann::json& row : figures(json)) {
    EXPECT_GT(row.at("gradwire").get<double>(), 0) << row;
    const std::string metric = row.at("metric");
    const std::string name = row.at("case");
    if (row.at("peer").is_null()) alone.insert(name + " " + metric);
    if (row.at("peer").is_null() || kTails.count(metric) > 0) continue;
    EXPECT_GT(row.at("ratio").get<double>(), 0) << row;
    compared.insert(
        absl::StrCat(name, metric == "p50_us" ? "" : " " + metric, " ", row.at("peer").get<std::string>()));
  }
  EXPECT_THAT(alone, IsSupersetOf({"clients_40 p50_us", "clients_40 descriptors_per_peer",
                                   "clients_40 memory_per_peer_kb", "killed_peer noticed_ms",
                                   "remote_add smart_over_fast", "chain_4 smart_over_fast",
                                   "fanout_8 smart_over_fast", "mlp_2 smart_over_fast"}));
  EXPECT_THAT(compared, IsSupersetOf({"null torch_tensorpipe",
                                      "null grpc",
                                      "null floor_tcp",
                                      "inflight_null calls_per_s grpc",
                                      "stream_4KiB items_per_s grpc",
                                      "add2_every_500us_2_per_core grpc",
                                      "add2_every_500us_2_per_core torch_tensorpipe",
                                      "train_step steps_per_s torch_tensorpipe",
                                      "add2 torch_tensorpipe",
                                      "add2 grpc",
                                      "add2 floor_tcp",
                                      "echo_64KiB grpc",
                                      "echo_64KiB torch_tensorpipe",
                                      "echo_64KiB floor_tcp",
                                      "push_pull_1MiB torch_tensorpipe",
                                      "cycle torch_tensorpipe",
                                      "share torch_tensorpipe",
                                      "killed_peer in_flight_failed_ms torch_tensorpipe",
                                      "all_to_all_3 first_contact_ms torch_tensorpipe",
                                      "all_to_all_3 descriptors_per_peer torch_tensorpipe",
                                      "all_to_all_3 memory_per_peer_kb torch_tensorpipe",
                                      "remote_add torch_tensorpipe",
                                      "chain_4 torch_tensorpipe",
                                      "chain_4 overhead_per_hop_us torch_tensorpipe",
                                      "fanout_8 torch_tensorpipe",
                                      "mlp_2 torch_tensorpipe",
                                      "set_get torch_store",
                                      "ping floor_tcp"}));
  EXPECT_THAT(read(html), HasSubstr("torch_tensorpipe"));
}

TEST(Bench, MeasuresCollectivesWithAsManyRanksAsTheirNamesSay) {
  const std::string json = ::testing::TempDir() + "/collectives.json";
  ASSERT_EQ(run_bench("--suite=collectives --peers=openmpi,gloo --seconds=0.05 --rounds=1 "
                      "--cases=all_reduce_2_ranks_4KiB,all_reduce_4_ranks_1MiB,all_gather_2_ranks_4KiB,"
                      "barrier_4_ranks,send_recv_2_ranks_8B --json=" +
                      json),
            0);
  std::set<std::string> compared;
  for (const nlohmann::json& row : figures(json)) {
    if (row.at("metric") != "p50_us" || row.at("peer").is_null()) continue;
    compared.insert(absl::StrCat(row.at("case").get<std::string>(), " ", row.at("peer").get<std::string>()));
  }
  EXPECT_THAT(compared, IsSupersetOf({"all_reduce_2_ranks_4KiB gloo", "all_reduce_2_ranks_4KiB floor_memory",
                                      "all_reduce_4_ranks_1MiB gloo", "all_gather_2_ranks_4KiB gloo",
                                      "barrier_4_ranks gloo", "send_recv_2_ranks_8B gloo"}));
  // Open MPI is measured only if it is installed.
  if (std::system("command -v mpicc mpirun >/dev/null") == 0) {
    EXPECT_THAT(compared, IsSupersetOf({"all_reduce_2_ranks_4KiB openmpi", "all_reduce_4_ranks_1MiB openmpi",
                                        "all_gather_2_ranks_4KiB openmpi", "barrier_4_ranks openmpi",
                                        "send_recv_2_ranks_8B openmpi"}));
  }
}

TEST(Bench, TheSuiteCudaWithoutAGpuIsOneErrorLine) {
  const std::string errors = ::testing::TempDir() + "/errors";
  EXPECT_NE(run_bench("--suite=cuda 2>" + errors), 0);
  EXPECT_THAT(read(errors), HasSubstr("bench: the suite cuda needs a GPU: "));
  EXPECT_EQ(absl::c_count(read(errors), '\n'), 1);
}

TEST(Bench, ComparesWithAnEarlierRun) {
  const std::string json = ::testing::TempDir() + "/earlier.json";
  const std::string arguments = "--suite=store --seconds=0.03 --rounds=3 ";
  ASSERT_EQ(run_bench(arguments + "--json=" + json), 0);
  for (const nlohmann::json& row : figures(json)) EXPECT_LE(row.at("rounds").size(), 3u) << row;
  const std::string table = ::testing::TempDir() + "/table";
  const int status =
      std::system(("tools/bench/bench " + arguments + "--against=" + json + " >" + table).c_str());
  // Exit status 3: the later run was slower.
  EXPECT_THAT(WEXITSTATUS(status), AnyOf(0, 3));
  EXPECT_THAT(read(table), ContainsRegex("slower [0-9]+, faster [0-9]+, unchanged [0-9]+"));
}

TEST(Bench, RefusesAnEarlierRunThatIsNoJson) {
  const std::string table = ::testing::TempDir() + "/table.json";
  std::ofstream(table) << R"({"machine":{"processor":"Some CPU"}})"
                       << "\nsuite case\n";
  const std::string errors = ::testing::TempDir() + "/errors";
  EXPECT_NE(run_bench("--suite=store --against=" + table + " 2>" + errors), 0);
  EXPECT_THAT(read(errors), HasSubstr("line 2 is not a line that --json writes"));
  EXPECT_NE(run_bench("--suite=store --against=/nowhere 2>/dev/null"), 0);
}

TEST(Bench, RefusesAnUnknownCase) { EXPECT_NE(run_bench("--suite=rpc --cases=nothing 2>/dev/null"), 0); }

}  // namespace
}  // namespace gradwire::bench
