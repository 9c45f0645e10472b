#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/polling/spin_wait.h"
#include "gradwire/codec/device.h"
#include "gradwire/security/limits.h"
#include "gradwire/security/security_options.h"

namespace gradwire::store {
class Store;
}

namespace gradwire::rpc {

struct AgentHooks;

// Settings of the heartbeats, by which a worker notices that another one does not answer.
struct HeartbeatOptions {
  // Period at which a worker sends a heartbeat on each connection.
  absl::Duration interval = absl::Seconds(1);
  // A worker that was silent for this long becomes WorkerState::kSuspect. At least three times `interval`.
  absl::Duration suspect_after = absl::Seconds(3);
  // A worker that was silent for this long is declared dead, permanently. A worker that was paused for less
  // (by SIGSTOP, a debugger or the migration of its machine) continues without harm. When a process ends on a
  // host that is up, the others notice it at once, independently of this value.
  absl::Duration dead_after = absl::Seconds(20);
};

// Says what happens to a call when the flow window to its worker (FlowOptions) is full.
enum class FlowPolicy {
  // The calling thread waits, first come first served, until the call's deadline (DeadlineExceeded).
  kWait,
  // The call fails at once with ResourceExhausted.
  kResourceExhausted,
};

// The flow window: bounds the unanswered calls from this worker to one other worker, or to itself. The
// framework's own messages (references, backward passes, cancellations) do not count and never wait.
//
// A call keeps its part of the window while it waits for nested calls. When calls nest in a cycle between
// workers and a window is full of outer calls, the inner calls wait until a deadline ends one of them.
struct FlowOptions {
  // Maximum number of unanswered calls. 0: no limit. Values above kMostCalls mean kMostCalls.
  uint32_t max_calls = 16'384;
  // Maximum number of bytes of unanswered requests, as sent. 0: no limit. Values above kMostBytes mean
  // kMostBytes. A larger request is sent when no other request is unanswered.
  uint64_t max_bytes = uint64_t{1} << 30;
  // How a call behaves when the window is full.
  FlowPolicy when_full = FlowPolicy::kWait;

  // The largest effective value of max_calls.
  static constexpr uint32_t kMostCalls = (uint32_t{1} << 21) - 1;
  // The largest effective value of max_bytes.
  static constexpr uint64_t kMostBytes = (uint64_t{1} << 42) - 1;
};

// Settings for retries. When a connection breaks before the answer, a call of a function that is registered
// as idempotent (GRADWIRE_RPC_IDEMPOTENT) is sent again, until its deadline, or until the worker is known to
// be dead or to have left. Any other call fails with Unavailable. So does a call of an idempotent function
// that carries or returns RRefs, belongs to an autograd context, is ordered(), is made by remote(), or goes
// to the calling worker itself.
struct RetryOptions {
  // Maximum number of attempts of one call, including the first. 1 or less: no retries.
  int max_attempts = 10;
  // Pause before the second attempt. Each later pause is twice as long, up to max_backoff.
  absl::Duration first_backoff = absl::Milliseconds(10);
  // The longest pause between two attempts.
  absl::Duration max_backoff = absl::Seconds(1);

  // Maximum number of answers to retryable calls that this worker keeps for each caller, so that it can
  // answer a retry without running the function again. When a retry arrives after its answer was dropped, the
  // function runs again.
  std::size_t max_answers = 1'024;
  // Maximum size of these answers, in bytes, for each caller.
  uint64_t max_answer_bytes = uint64_t{64} << 20;
  // Time for which each answer is kept.
  absl::Duration keep_answers = absl::Seconds(60);

  // The pause after the attempt with this number. The first attempt has number 1.
  absl::Duration backoff_after(int attempt) const {
    absl::Duration backoff = first_backoff;
    for (int i = 1; i < attempt && backoff < max_backoff; ++i) backoff *= 2;
    return backoff < max_backoff ? backoff : max_backoff;
  }
};

// Settings of the flight record: the last calls and backward passes of a worker, for finding out why a job
// hangs or has crashed (docs/observability.md).
struct FlightRecordOptions {
  // Number of calls and passes that are kept, rounded up to a power of two; at most kMostRecords. One takes
  // 128 bytes. 0: nothing is recorded.
  uint32_t records = 4096;
  // The directory of the files in which records are dumped. Empty: that of the environment variable
  // GRADWIRE_FLIGHT_DIR, and without one the log, shortened.
  std::string directory;
  // Whether the first call that times out has the records of the process dumped.
  bool dump_on_timeout = true;
  // Only calls that had at least this time do so. The timeout of a shorter call is usually expected: its
  // caller asks whether an answer is there yet, for example.
  absl::Duration dump_timeouts_from = absl::Seconds(10);
  // Further timeouts have them dumped again, at most once in this time. InfiniteDuration(): never again.
  absl::Duration dump_interval = absl::Seconds(60);

  // The most calls and passes that are kept.
  static constexpr uint32_t kMostRecords = 1 << 20;
};

// Options of an agent: how it joins its group, makes calls and serves them.
struct RpcBackendOptions {
  // Timeout of calls whose destination has none. InfiniteDuration(): no limit.
  absl::Duration rpc_timeout = absl::Seconds(60);
  // The URL by which the workers find each other (store/init/init_method.h).
  std::string init_method = "env://";
  // Maximum number of handlers that run at the same time. A handler that waits does not count.
  int num_worker_threads = 16;
  // Maximum number of threads that handlers occupy, including handlers that wait.
  int max_worker_threads = 256;
  // Used instead of init_method when set. Then rank and world size do not come from the environment: give
  // both. In an open group (world size 0) the rank may be -1.
  std::shared_ptr<store::Store> store;
  // Names of the transports that may be used, best first. Empty: all that work on this host, which are "shm"
  // (to workers on the same host) and "tcp". When a transport fails between two workers, they use the next
  // one and log it. When "shm" does not work on this host at all, for example in a container, it is left out
  // and a warning is logged; init fails with Unavailable if no other transport is named. "ucx" is used only
  // when it is named here, in programs that are built with it (docs/transport.md).
  std::vector<std::string> transports;
  // Whether to connect to all workers before init returns. Otherwise a connection is made on first use.
  bool connect_at_init = false;
  // The ways that tensors on devices may take: "local" (handed over, to an agent of the same process), "ipc"
  // (copied by the device from the memory of another process of the same host) and "host" (copied to the
  // host, then sent by a transport). The first possible one, in this order, is used. Empty: all of them.
  // "host" is always possible, and is used while it is not known whether "ipc" works between two processes.
  std::vector<std::string> channels;
  // For each other worker by name: this worker's devices, and the device there on which tensors from each of
  // them arrive. Results come back by the inverse, so a map is one to one. It may lead from or to "cpu". A
  // worker without a map: each device means the one of the same name. Checked at init, against the devices of
  // the other workers too.
  std::map<std::string, DeviceMap> device_maps;
  // The accelerator's devices on which tensors may arrive here, and whose memory the channel "ipc" may use.
  // Empty: tensors arrive on this worker's devices in device_maps, or, without maps, on all of this process;
  // "ipc" may use all of them.
  std::vector<Device> devices;
  // Maximum time to wait until all workers have joined.
  absl::Duration join_timeout = absl::Seconds(300);
  // Maximum time to establish a connection.
  absl::Duration connect_timeout = absl::Seconds(10);
  // How this worker notices that another one does not answer.
  HeartbeatOptions heartbeat;
  // How long threads poll for messages before they sleep.
  WaitPolicy wait;
  // Limits on the messages that are accepted from other processes.
  Limits limits;
  // How this worker and the others prove who they are, and what the others may call here (docs/security.md).
  SecurityOptions security;
  // Maximum time that shutdown waits for handlers that continue after their calls were cancelled. Then
  // shutdown fails with DeadlineExceeded, which names these handlers, and leaves their threads running.
  // InfiniteDuration(): no limit. A graceful shutdown cancels no call before its own timeout. Until then it
  // waits for the handlers, and logs their names.
  absl::Duration handler_timeout = absl::Seconds(30);
  // The flow window to each worker.
  FlowOptions flow;
  // Limits on what each other worker may use of this one at a time. Not less than the flow window.
  CallerLimits caller_limits;
  // Maximum number of processes that observe this worker at the same time (`tools/inspect`). 0: none may.
  int max_observers = 4;
  // How calls of idempotent functions are retried when a connection breaks.
  RetryOptions retry;
  // Whether the agent counts its calls and measures their times (docs/metrics.md).
  bool metrics = true;
  // Where the agent serves its metrics as Prometheus's text, over HTTP: "127.0.0.1:9100", with port 0 for a
  // free one, or "unix:PATH". Empty: the value of GRADWIRE_METRICS_ADDRESS, and without it nowhere
  // (docs/observability.md).
  std::string metrics_address;
  // Whether an address of `metrics_address` may be one that other hosts reach. They see the metrics without
  // any proof. Also true with `security.insecure`, or if GRADWIRE_METRICS_INSECURE is 1.
  bool metrics_insecure = false;
  // The flight record of this worker.
  FlightRecordOptions flight;
  // Messages of more bytes than this say in the log how far they are, when they take longer than 10 s
  // (docs/observability.md). 0: the value of GRADWIRE_LOG_TRANSFERS_OVER, and without it none does.
  uint64_t log_transfers_over = 0;
  // For the tests of this library (rpc/agent/agent_hooks.h). Programs leave it empty.
  std::shared_ptr<const AgentHooks> hooks;

  // Adds the entries of `map` to the device map of a worker.
  void set_device_map(const std::string& worker, const DeviceMap& map) {
    for (const auto& [from, to] : map) device_maps[worker].insert_or_assign(from, to);
  }
  // Sets `devices`.
  void set_devices(std::vector<Device> list) { devices = std::move(list); }
};

// The name in torch.distributed.rpc.
using TensorPipeRpcBackendOptions = RpcBackendOptions;

}  // namespace gradwire::rpc
