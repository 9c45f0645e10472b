// Compares Gradwire with other frameworks and with the limits of the machine, all in one run.
//
//   bazel run -c opt //tools:bench -- --suite=rpc --peers=torch,grpc --json=FILE --html=FILE

#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "gradwire/base/version.h"
#include "gradwire/tools/bench/calibration/copy_costs.h"
#include "gradwire/tools/bench/collectives/collective_member.h"
#include "gradwire/tools/bench/cuda/cuda_processes.h"
#include "gradwire/tools/bench/report/comparison.h"
#include "gradwire/tools/bench/report/html_page.h"
#include "gradwire/tools/bench/report/machine.h"
#include "gradwire/tools/bench/report/report.h"
#include "gradwire/tools/bench/run/serve_process.h"
#include "gradwire/tools/bench/runner.h"
#include "gradwire/tools/bench/security/gradwire_connect.h"
#include "gradwire/tools/bench/suites/bench_options.h"
#include "gradwire/tools/bench/suites/floors.h"
#include "gradwire/tools/bench/systems/gradwire_member.h"
#include "gradwire/tools/bench/systems/grpc_echo.h"
#include "gradwire/tools/bench/systems/stores.h"
#include "gradwire/tools/bench/systems/torch_member.h"
#include "gradwire/tools/bench/transport/gradwire_transport.h"

ABSL_FLAG(std::vector<std::string>, suite, {"rpc"},
          "transport, rpc, rref, autograd, store, scale, collectives, cuda, or all (without cuda)");
ABSL_FLAG(std::vector<std::string>, peers, {}, "the systems to compare with: torch, grpc, openmpi, gloo");
ABSL_FLAG(std::vector<std::string>, cases, {},
          "run only these cases; other sizes are possible, as in echo_256KiB");
ABSL_FLAG(std::vector<std::string>, transports, {},
          "run only over these transports: shm, tcp; in the suite security: plain, token, tls");
ABSL_FLAG(double, seconds, 1, "measuring time for each case and system, over all rounds");
ABSL_FLAG(int, rounds, 5, "number of rounds in a case; each system runs once in a round");
ABSL_FLAG(bool, floors, true, "also measure the lower bounds that the machine itself sets");
ABSL_FLAG(std::string, json, "", "a file to write, with one JSON object per figure and peer");
ABSL_FLAG(std::string, html, "", "a file to write, with one page of plots");
ABSL_FLAG(
    std::string, against, "",
    "an earlier --json file; print what is slower or faster than it, exit with 3 if something is slower");
ABSL_FLAG(bool, calibration, false,
          "only print what each method of a copy costs here, and which one is chosen");
ABSL_FLAG(std::string, participant, "", "internal: the role of this process in a run");

namespace gradwire::bench {
namespace {

// The exit status if --against finds a figure that is slower.
constexpr int kSlowerStatus = 3;

std::unique_ptr<BenchProcess> make_process(const std::string& role) {
  static const auto& factories = *new std::map<std::string, std::unique_ptr<BenchProcess> (*)()>{
      {"floor_cuda_copy", &make_floor_cuda_copy},
      {"floor_futex", &make_floor_futex},
      {"floor_handoff", &make_floor_handoff},
      {"floor_memcpy", &make_floor_memcpy},
      {"floor_memory", &make_floor_memory},
      {"floor_spin", &make_floor_spin},
      {"floor_tcp", &make_floor_tcp},
      {"floor_tcp_spin", &make_floor_tcp_spin},
      {"floor_wake", &make_floor_wake},
      {"gradwire_autograd", &make_gradwire_autograd},
      {"gradwire_clients", &make_gradwire_clients},
      {"gradwire_cuda", &make_gradwire_cuda},
      {"gradwire_loss", &make_gradwire_loss},
      {"gloo_collectives", &make_gloo_collectives},
      {"gradwire_collectives", &make_gradwire_collectives},
      {"gradwire_rpc", &make_gradwire_rpc},
      {"gradwire_connect", &make_gradwire_connect},
      {"gradwire_rref", &make_gradwire_rref},
      {"gradwire_store", &make_gradwire_store},
      {"gradwire_transport", &make_gradwire_transport},
      {"grpc", &make_grpc},
      {"openmpi", &make_openmpi_peer},
      {"torch_autograd", &make_torch_autograd},
      {"torch_cuda", &make_torch_cuda},
      {"torch_loss", &make_torch_loss},
      {"torch_rpc", &make_torch_rpc},
      {"torch_rref", &make_torch_rref},
      {"torch_store", &make_torch_store},
  };
  const auto found = factories.find(role);
  return found == factories.end() ? nullptr : found->second();
}

std::string load() {
  double averages[3] = {};
  getloadavg(averages, 3);
  return absl::StrFormat("%.2f", averages[0]);
}

// `bazel run` starts a program in another folder. Returns a path relative to the folder of the command
// instead.
std::string from_working_directory(const std::string& path) {
  const char* folder = std::getenv("BUILD_WORKING_DIRECTORY");
  return path.empty() || path[0] == '/' || folder == nullptr ? path : absl::StrCat(folder, "/", path);
}

// Reads the file of --against.
absl::StatusOr<EarlierRun> read_earlier_run(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return absl::NotFoundError("cannot read the file");
  return parse_earlier_run(text.str());
}

int run_bench() {
  const auto options = complete_options({.suites = absl::GetFlag(FLAGS_suite),
                                         .peers = absl::GetFlag(FLAGS_peers),
                                         .cases = absl::GetFlag(FLAGS_cases),
                                         .transports = absl::GetFlag(FLAGS_transports),
                                         .seconds = absl::GetFlag(FLAGS_seconds),
                                         .rounds = absl::GetFlag(FLAGS_rounds),
                                         .floors = absl::GetFlag(FLAGS_floors)});
  if (!options.ok()) {
    std::cerr << "bench: " << options.status().message() << "\n";
    return 2;
  }
  if (absl::c_linear_search(options->suites, "cuda")) {
    if (const absl::Status gpu = find_gpu(); !gpu.ok()) {
      std::cerr << "bench: the suite cuda needs a GPU: " << gpu.message() << "\n";
      return 2;
    }
  }
  std::optional<EarlierRun> earlier;
  if (const std::string path = from_working_directory(absl::GetFlag(FLAGS_against)); !path.empty()) {
    auto read = read_earlier_run(path);
    if (!read.ok()) {
      std::cerr << "bench: --against=" << path << ": " << read.status().message() << "\n";
      return 2;
    }
    earlier = *std::move(read);
  }
  const Machine machine = read_machine();
  std::ofstream json;
  if (const std::string path = from_working_directory(absl::GetFlag(FLAGS_json)); !path.empty()) {
    json.open(path);
    if (!json) {
      std::cerr << "bench: cannot write " << path << "\n";
      return 2;
    }
    json << machine_line(machine) << std::endl;
  }
#ifndef NDEBUG
  std::cerr << "bench: this program was built without optimisation; build it with -c opt\n";
#endif
  const absl::Time start = absl::Now();
  const std::string load_before = load();
  if (std::atof(load_before.c_str()) > 0.5) {
    std::cerr << "bench: the load average is " << load_before
              << ": other programs are running and will disturb the figures\n";
  }
  Runner runner(
      *options, [&](const Row& row) { json << json_line(row) << std::endl; },
      [&](const std::string& line) {
        std::cerr << absl::StrFormat("[%4d s] %s\n", absl::ToInt64Seconds(absl::Now() - start), line);
      });
  Report report = runner.run();
  const std::string load_after = load();
  for (const std::string& peer : options->peers) {
    const bool collectives_only = peer == "openmpi" || peer == "gloo";
    if (collectives_only && !absl::c_linear_search(options->suites, "collectives")) {
      report.skipped.push_back(absl::StrCat(peer, ": measured only in the suite collectives"));
    }
  }
  report.about = about_lines(machine);
  report.about.insert(
      report.about.end(),
      {{"when", absl::FormatTime("%Y-%m-%d %H:%M UTC", start, absl::UTCTimeZone())},
       {"load average before and after", absl::StrCat(load_before, ", ", load_after)},
       {"run", absl::StrCat(options->rounds, " rounds, ", options->seconds,
                            " s for each case and system; suites ", absl::StrJoin(options->suites, ", "),
                            "; peers ", absl::StrJoin(options->peers, ", "))}});
  std::cout << text_table(report);
  if (const std::string path = from_working_directory(absl::GetFlag(FLAGS_html)); !path.empty()) {
    std::ofstream page(path);
    page << html_page(report);
    if (!page.flush()) {
      std::cerr << "bench: cannot write " << path << "\n";
      return 1;
    }
  }
  if (!earlier) return 0;
  const RunComparison comparison = compare_runs(*earlier, machine.processor, report.rows);
  std::cout << "\ncompared with " << absl::GetFlag(FLAGS_against) << ":\n" << comparison.text;
  return comparison.slower > 0 ? kSlowerStatus : 0;
}

}  // namespace
}  // namespace gradwire::bench

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("compares Gradwire with its peers; see docs/performance.md");
  absl::FlagsUsageConfig usage;
  usage.version_string = [] { return absl::StrCat("gradwire ", gradwire::kVersion, "\n"); };
  absl::SetFlagsUsageConfig(usage);
  absl::ParseCommandLine(argc, argv);
  const std::string role = absl::GetFlag(FLAGS_participant);
  if (role.empty()) {
    if (!absl::GetFlag(FLAGS_calibration)) return gradwire::bench::run_bench();
    std::cout << gradwire::bench::calibration_text();
    return 0;
  }
  const auto process = gradwire::bench::make_process(role);
  if (process == nullptr) {
    std::cerr << "bench: unknown value of --participant: got " << role << "\n";
    return 2;
  }
  constexpr int kChannelFd = 3;
  gradwire::bench::serve_process(kChannelFd, *process);
}
