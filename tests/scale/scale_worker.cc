// One worker of the scale tests.
//   scale_worker STORE_PORT GROUP RANK WORLD_SIZE DESCRIPTORS TRANSPORT
// DESCRIPTORS: how many descriptors it may have open. TRANSPORT: the only transport to use, or "all".
//
// It reads commands of the test from descriptor 4 and writes lines to descriptor 3:
//   command   line
//             ready DESCRIPTORS RESIDENT_KB
//   call      called MS                             (after it has called every worker)
//   count     holds DESCRIPTORS RESIDENT_KB
//   end       ended MS DESCRIPTORS_LEFT MEMFDS_LEFT THREADS_LEFT
// If it fails, it writes "failed WHY" instead.

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <limits>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tests/chaos/call_log.h"
#include "gradwire/tests/chaos/census.h"
#include "gradwire/tests/scale/scale_services.h"

namespace scale {
namespace {

using chaos::Census;
using gradwire::Future;
using gradwire::rpc::Agent;
using gradwire::rpc::RpcBackendOptions;

void write_line(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(3, text.data(), text.size()) < 0) std::_Exit(3);
}

std::string read_command() {
  std::string line;
  for (char c; ::read(4, &c, 1) == 1 && c != '\n';) line += c;
  return line;
}

std::string holds() {
  return absl::StrCat(chaos::take_census().descriptors, " ", chaos::resident_bytes() / 1024);
}

int64_t ms_since(int64_t start_us) { return (chaos::monotonic_us() - start_us) / 1000; }

void call_all(Agent& agent, int rank, int world_size) {
  const int64_t start = chaos::monotonic_us();
  std::vector<Future<int64_t>> sums;
  // Each worker begins with the next rank, so that they do not all call the same worker first.
  for (int i = 1; i < world_size; ++i) {
    const int other = (rank + i) % world_size;
    sums.push_back(agent.rpc_async<&add>(gradwire::rpc::Destination(other).with_timeout(absl::Seconds(60)),
                                         int64_t{rank}, int64_t{other}));
  }
  for (int i = 1; i < world_size; ++i) {
    const int64_t sum = sums[i - 1].wait();
    if (sum != rank + (rank + i) % world_size)
      throw gradwire::Error(
          absl::InternalError(absl::StrCat("wrong sum from worker", (rank + i) % world_size, ": got ", sum,
                                           ", expected ", rank + (rank + i) % world_size)));
  }
  write_line(absl::StrCat("called ", ms_since(start)));
}

// A connection that is being made may have more descriptors than later, so wait until each worker has at most
// two. If this takes too long, the line has more, and the test fails.
void count(const Census& before, int peers) {
  Census settled = before, now;
  settled.descriptors += 2 * peers;
  settled.memfds = settled.memfd_mappings = settled.threads = std::numeric_limits<int>::max();
  (void)chaos::returns_to(settled, now);
  write_line("holds " + holds());
}

void run(int port, const std::string& group, int rank, int world_size, const std::string& transport) {
  const Census before = chaos::take_census();
  int64_t start = 0;
  {
    RpcBackendOptions options;
    options.store = std::make_shared<gradwire::store::PrefixStore>(
        group,
        std::make_shared<gradwire::store::TcpStore>("127.0.0.1", port, gradwire::store::TcpStoreOptions{}));
    if (transport != "all") options.transports = {transport};
    options.num_worker_threads = 4;
    std::shared_ptr<Agent> agent = Agent::start(absl::StrCat("worker", rank), rank, world_size, options);
    options.store = nullptr;
    const Census ready = chaos::take_census();
    write_line("ready " + holds());
    for (std::string command = read_command(); command != "end"; command = read_command()) {
      if (command == "call") {
        call_all(*agent, rank, world_size);
      } else if (command == "count") {
        count(ready, world_size - 1);
      } else {
        std::_Exit(3);
      }
    }
    start = chaos::monotonic_us();
    agent->shutdown(/*graceful=*/true, absl::Seconds(60));
  }
  const int64_t took = ms_since(start);
  Census after;
  (void)chaos::returns_to(before, after);
  write_line(absl::StrCat("ended ", took, " ", after.descriptors - before.descriptors, " ",
                          after.memfds - before.memfds, " ", after.threads - before.threads));
}

}  // namespace
}  // namespace scale

int main(int argc, char** argv) {
  int port = 0, rank = 0, world_size = 0, descriptors = 0;
  if (argc != 7 || !absl::SimpleAtoi(argv[1], &port) || !absl::SimpleAtoi(argv[3], &rank) ||
      !absl::SimpleAtoi(argv[4], &world_size) || !absl::SimpleAtoi(argv[5], &descriptors)) {
    std::fputs("usage: scale_worker STORE_PORT GROUP RANK WORLD_SIZE DESCRIPTORS TRANSPORT\n", stderr);
    return 2;
  }
  ::signal(SIGPIPE, SIG_IGN);
  const rlimit limit = {static_cast<rlim_t>(descriptors), static_cast<rlim_t>(descriptors)};
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
  try {
    scale::run(port, argv[2], rank, world_size, argv[6]);
  } catch (const gradwire::Error& error) {
    scale::write_line(absl::StrCat("failed ", error.what()));
    return 1;
  }
  return 0;
}
