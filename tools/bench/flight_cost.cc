// Measures the flight recorder: nanoseconds for each event, with one thread and with several.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/rpc/flight/call_recorder.h"

namespace gradwire {
namespace {

using rpc::CallEvent;
using rpc::CallParent;
using rpc::CallRecorder;

// A round is short, so that the best one is not interrupted by other processes.
constexpr int kCalls = 20'000;
constexpr int kRounds = 500;

// Records calls as an agent does: a call that it makes has two events, a call that it serves has three.
void record_calls(CallRecorder& recorder, bool served) {
  const std::string name = "demo::ParameterServer::get_parameters";
  const absl::Time now = absl::UnixEpoch() + absl::Seconds(1000);
  for (int i = 0; i < kCalls; ++i) {
    const uint64_t record = recorder.begin(served ? CallEvent::Kind::kServed : CallEvent::Kind::kMade, 0xA,
                                           static_cast<uint64_t>(i), CallParent::call({0xB, 7}), name, now);
    if (served) recorder.started(record, now + absl::Nanoseconds(i));
    recorder.ended(record, now + absl::Nanoseconds(i), absl::StatusCode::kOk);
  }
}

// The best of many rounds, in nanoseconds for each event of each thread.
double measure(std::size_t capacity, int threads, bool served) {
  double best = 1e9;
  CallRecorder recorder(capacity);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::thread> workers;
    const int64_t begin = monotonic_nanoseconds();
    for (int i = 1; i < threads; ++i)
      workers.emplace_back([&recorder, served] { record_calls(recorder, served); });
    record_calls(recorder, served);
    for (std::thread& worker : workers) worker.join();
    const auto elapsed = static_cast<double>(monotonic_nanoseconds() - begin);
    best = std::min(best, elapsed / kCalls / (served ? 3 : 2));
  }
  return best;
}

void run() {
  std::printf("nanoseconds for each event\n%-12s %8s %8s\n", "records", "made", "served");
  for (const std::size_t capacity : {0, 4096, 65536})
    std::printf("%-12zu %8.1f %8.1f\n", capacity, measure(capacity, 1, false), measure(capacity, 1, true));
  std::printf("two threads  %8.1f %8.1f\n", measure(4096, 2, false), measure(4096, 2, true));
}

}  // namespace
}  // namespace gradwire

int main() { gradwire::run(); }
