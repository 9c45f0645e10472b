// A worker of the job of which `screenshot` makes the picture in docs/observability.md: two servers and three
// trainers under the launcher. They call each other, one chain of calls hangs, one rank is late at a
// collective, and in the first round a worker fails. Without libtorch, so the collectives and the parts of
// backward passes are only recorded, not computed. The job runs until it is ended.
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/flight/flight_source.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/collectives/flight/coarse_clock.h"
#include "gradwire/collectives/flight/flight_recorder.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/flight/call_recorder.h"
#include "gradwire/rpc/init_rpc.h"
#include "gradwire/rpc/registry/registration.h"
#include "gradwire/tools/launch_info.h"

namespace demo {

using gradwire::rpc::Agent;
using gradwire::rpc::CallEvent;
using gradwire::rpc::Destination;
using gradwire::rpc::rpc_sync;

constexpr absl::Duration kLong = absl::Minutes(10);

std::string lookup(int64_t size) {
  absl::SleepFor(absl::Microseconds(300 + size / 200));
  return std::string(static_cast<std::size_t>(size), 'x');
}
GRADWIRE_RPC(lookup)
int64_t write_checkpoint() {
  absl::SleepFor(kLong);
  return 1;
}
GRADWIRE_RPC(write_checkpoint)
int64_t save(const std::string& to) {
  return rpc_sync<&write_checkpoint>(Destination(to).with_timeout(kLong));
}
GRADWIRE_RPC(save)
int64_t end_epoch(const std::string& by, const std::string& to) {
  return rpc_sync<&save>(Destination(by).with_timeout(kLong), to);
}
GRADWIRE_RPC(end_epoch)

// Records a part of the pass of this root while `work` runs.
template <class Work>
void in_pass(uint64_t root, uint64_t number, Work work) {
  gradwire::rpc::CallRecorder& recorder = Agent::current()->services().recorder();
  const auto now = [] { return gradwire::Clock::system().now(); };
  const uint64_t record = recorder.begin(CallEvent::Kind::kPass, root, number, {}, "", now());
  work();
  recorder.ended(record, now(), absl::StatusCode::kOk);
}
int64_t run_part(uint64_t root, uint64_t number, int64_t milliseconds, const std::string& next) {
  in_pass(root, number, [&] {
    absl::SleepFor(absl::Milliseconds(milliseconds));
    if (!next.empty()) rpc_sync<&run_part>(next, root, number, 2 * milliseconds, std::string());
    absl::SleepFor(absl::Milliseconds(milliseconds / 2));
  });
  return 1;
}
GRADWIRE_RPC(run_part)

void write_records() { (void)gradwire::dump_flight_records("of the example"); }
GRADWIRE_RPC(write_records)

void run_pass(uint64_t number) {
  const uint64_t root = Agent::current()->services().self().incarnation;
  in_pass(root, number, [&] {
    absl::SleepFor(absl::Milliseconds(6));
    const auto first =
        gradwire::rpc::rpc_async<&run_part>("server0", root, number, int64_t{8}, std::string("trainer2"));
    const auto second =
        gradwire::rpc::rpc_async<&run_part>("server1", root, number, int64_t{12}, std::string());
    first.wait();
    second.wait();
    absl::SleepFor(absl::Milliseconds(4));
  });
  for (const char* worker : {"server0", "server1", "trainer0", "trainer2"}) rpc_sync<&write_records>(worker);
}

}  // namespace demo

int main() {
  using namespace demo;
  const gradwire::LaunchInfo info = gradwire::LaunchInfo::from_env();
  const std::vector<std::string> names = {"server0", "server1", "trainer0", "trainer1", "trainer2"};
  const auto rank = static_cast<std::size_t>(info.rank);
  gradwire::rpc::init_rpc(names.at(rank));
  gradwire::collectives::FlightRecorder group(absl::StrCat("group \"world\", rank ", rank, " of 5"));
  if (const char* file = std::getenv("EXAMPLE_PORT_FILE"); rank == 0 && file != nullptr) {
    std::ofstream(absl::StrCat(file, ".part")) << info.master_port;
    std::rename(absl::StrCat(file, ".part").c_str(), file);
  }
  std::thread slow;
  const absl::Time began = absl::Now();
  const auto age = [&] { return absl::Now() - began; };
  for (uint64_t step = 0;; ++step) {
    if (info.restart_count == 0 && rank == 4 && age() > absl::Seconds(8)) std::_Exit(1);
    if (rank >= 2) {
      const std::string server = step % 3 == 0 ? "server0" : "server1";
      rpc_sync<&lookup>(server,
                        static_cast<int64_t>(step % 40 == 0 ? 2'000'000 : 3'000 * rank * (1 + step % 5)));
    }
    absl::SleepFor(absl::Milliseconds(2 + 2 * rank));
    using State = gradwire::collectives::FlightRecorder::State;
    const auto now = gradwire::collectives::coarse_now();
    const auto collective = static_cast<uint64_t>(absl::ToInt64Milliseconds(age()) / 400);
    static uint64_t next = 0;
    // From one moment on rank 3 is late, and the others wait.
    for (; next <= collective && next <= (rank == 3 ? 24u : 25u); ++next) {
      group.begin({.operation = gradwire::collectives::Operation::kAllReduce}, next,
                  next == 25 ? State::kRunning : State::kDone, now);
    }
    if (rank == 2 && step % 100 == 50) run_pass(step / 100);
    if (rank == 2 && info.restart_count > 0 && age() > absl::Seconds(6) && !slow.joinable()) {
      slow = std::thread([] {
        rpc_sync<&end_epoch>(Destination("server0").with_timeout(kLong), std::string("server1"),
                             std::string("trainer2"));
      });
    }
  }
}
