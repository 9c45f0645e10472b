#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/threads/spin_wait.h"
#include "gradwire/security/limits.h"

namespace gradwire::store {
class Store;
}

namespace gradwire::rpc {

struct AgentHooks;

// How workers notice that another does not answer.
struct HeartbeatOptions {
  // How often a worker says something on each connection.
  absl::Duration interval = absl::Seconds(1);
  // Silent for so long: WorkerState::kSuspect. At least three times the interval.
  absl::Duration suspect_after = absl::Seconds(3);
  // Silent for so long: dead, for good. One that was paused (SIGSTOP, a debugger, its machine moved) for less
  // comes back without harm. A worker whose process ended on a host that is up is noticed at once, whatever
  // stands here.
  absl::Duration dead_after = absl::Seconds(20);
};

// What happens to a call for which a worker's window (FlowOptions) has no room.
enum class FlowPolicy {
  // The calling thread waits, in the order of arrival and within the call's deadline (DeadlineExceeded).
  kWait,
  // The call fails at once with ResourceExhausted.
  kResourceExhausted,
};

// How much may be under way from this worker to one other, itself included, before it is answered. The
// messages of the framework itself (references, backward passes, cancellations) do not count and are never
// held up.
//
// Calls that nest in a circle hold their places while they wait for one another: a window that is full of
// outer calls lets no inner one out until some deadline comes.
struct FlowOptions {
  // 0: no bound; at most kMostCalls count.
  uint32_t max_calls = 16'384;
  // Of requests, as they leave. 0: no bound; at most kMostBytes count. A request larger than this goes when
  // nothing else is under way.
  uint64_t max_bytes = uint64_t{1} << 30;
  // What a call does that finds no room.
  FlowPolicy when_full = FlowPolicy::kWait;

  // The largest bound on calls that counts.
  static constexpr uint32_t kMostCalls = (uint32_t{1} << 21) - 1;
  // The largest bound on bytes that counts.
  static constexpr uint64_t kMostBytes = (uint64_t{1} << 42) - 1;
};

// What becomes of a call of a function that is registered as idempotent (GRADWIRE_RPC_IDEMPOTENT) when its
// connection breaks before the answer: it is made again, within its deadline, until the worker is known to be
// dead or to have left. All other calls fail with Unavailable then, and so do these when they carry or return
// RRefs, belong to an autograd context, are ordered() or made by remote(), or go to the calling worker
// itself.
struct RetryOptions {
  // Of one call, the first included. 1 or less: none is made again.
  int max_attempts = 10;
  // Before the second attempt; twice as long before each one after that, but no longer than max_backoff.
  absl::Duration first_backoff = absl::Milliseconds(10);
  // The longest pause between two attempts.
  absl::Duration max_backoff = absl::Seconds(1);

  // Of the answers that this worker has given to such calls of one other worker: how many of them, of how
  // many bytes in all, and how long they are kept for repetitions. The function runs again for a repetition
  // that comes after that.
  std::size_t max_answers = 1'024;
  // Bytes of those answers in all.
  uint64_t max_answer_bytes = uint64_t{64} << 20;
  // How long each is kept.
  absl::Duration keep_answers = absl::Seconds(60);

  // What comes after the attempt of this number, the first being 1.
  absl::Duration backoff_after(int attempt) const {
    absl::Duration backoff = first_backoff;
    for (int i = 1; i < attempt && backoff < max_backoff; ++i) backoff *= 2;
    return backoff < max_backoff ? backoff : max_backoff;
  }
};

// How an agent joins its group, calls and serves.
struct RpcBackendOptions {
  // How long a call may take unless its destination says otherwise. InfiniteDuration(): no limit.
  absl::Duration rpc_timeout = absl::Seconds(60);
  // Where the workers find each other (store/init_method.h).
  std::string init_method = "env://";
  // Handlers that run at a time; one that waits does not count.
  int num_worker_threads = 16;
  // Bounds the threads that handlers may occupy, waiting ones included.
  int max_worker_threads = 256;
  // Instead of init_method; then rank and world size are required.
  std::shared_ptr<store::Store> store;
  // Which ways of connecting may be used, best first; empty: all that work here, which are "shm" (to workers
  // on the same host) and "tcp". One that fails between two workers is left for the next with a line in the
  // log. "ucx" is used only where it is named, and in programs that are built with it (docs/transport.md).
  std::vector<std::string> transports;
  // Connect to every worker before init returns; else on first use.
  bool connect_at_init = false;
  // How long to wait for all workers to join.
  absl::Duration join_timeout = absl::Seconds(300);
  // How long a connection may take to be established.
  absl::Duration connect_timeout = absl::Seconds(10);
  // How it is noticed that another worker does not answer.
  HeartbeatOptions heartbeat;
  // How long threads look for what arrives before they sleep.
  WaitPolicy wait;
  // What is accepted from other processes.
  Limits limits;
  // How long shutdown waits for handlers that go on though their calls were cancelled; then it fails with
  // DeadlineExceeded that names them, and leaves their threads behind. Infinite: no limit. A graceful
  // shutdown cancels no call before its own timeout: until then it waits for handlers, and says which on
  // standard error.
  absl::Duration handler_timeout = absl::Seconds(30);
  // How much may be under way to one worker, and what becomes of a call beyond that.
  FlowOptions flow;
  // How calls of idempotent functions are made again when a connection breaks.
  RetryOptions retry;
  // Of this library's tests (rpc/agent/agent_hooks.h); programs leave it empty.
  std::shared_ptr<const AgentHooks> hooks;
};

// The name in torch.distributed.rpc.
using TensorPipeRpcBackendOptions = RpcBackendOptions;

}  // namespace gradwire::rpc
