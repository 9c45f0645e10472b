#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/flight/flight_source.h"
#include "gradwire/base/flight/json_line.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/core/worker.h"
#include "gradwire/rpc/flight/call_parent.h"
#include "gradwire/rpc/flight/call_recorder.h"

namespace gradwire::rpc {

// Where a call that has not ended is. The first states are those at the caller, the others those at the
// callee. The numbers are part of the format of flight records; new ones are added at the end.
enum class CallState : uint8_t {
  kWaitingForCredit = 0,   // The flow window to the callee is full (FlowOptions).
  kCopying = 1,            // Its tensors are being copied from a device. Nothing has been sent.
  kSent = 2,               // It waits for the answer.
  kBetweenAttempts = 3,    // Its connection broke, and it will be sent again.
  kWaitingForObject = 4,   // The value of its RRef does not exist yet.
  kWaitingForContext = 5,  // Its autograd context does not admit it yet.
  kQueued = 6,             // It waits for a thread, or for its turn.
  kRunning = 7,            // Its handler runs, or the Future that the handler returned is open.
  kNested = 8,             // As kRunning, and calls that the handler has made are open.
  kAnswering = 9,          // The handler has ended; the result is being copied from a device.
};

// "waits for a credit", "sent", and so on; "?" for another value. The text lives as long as the program.
constexpr const char* to_string(CallState state) {
  constexpr const char* kNames[] = {"waits for a credit",
                                    "copies its tensors",
                                    "sent",
                                    "between attempts",
                                    "waits for its object",
                                    "waits for its context",
                                    "queued",
                                    "running",
                                    "in nested calls",
                                    "answering"};
  const auto index = static_cast<unsigned>(state);
  return index < sizeof(kNames) / sizeof(*kNames) ? kNames[index] : "?";
}

// The state of a served call, which other threads read. Thread-safe.
using SharedCallState = std::atomic<CallState>;

// A call that has not ended, as one of its ends sees it.
struct CallReport {
  CallIdentity identity;
  // None at the callee, which does not know it.
  CallParent parent;
  // The name of the callee; "service N" for a message of the framework itself.
  std::string callee;
  // The incarnation of the worker at the other end.
  uint64_t peer = 0;
  absl::Time since;                              // On Clock::system().
  absl::Time deadline = absl::InfiniteFuture();  // On Clock::system().
  CallState state = CallState::kSent;
  bool is_service = false;
  // The caller fetches items of the stream that this function has made; empty for other calls. Only the
  // caller knows it. The callee finds it by `target`, the object of the call.
  std::string stream_of;
  Id target;
};

// The calls of one agent that have not ended.
struct OpenCalls {
  std::vector<CallReport> made;    // By this worker.
  std::vector<CallReport> served;  // For other workers and for itself.
};

// Gives the state kNested to those calls of `served` that are the parent of a call in `made`. Both are
// reports of one worker.
void find_nested(const std::vector<CallReport>& made, std::vector<CallReport>& served);

// ---- The lines of an agent's flight record (docs/observability.md). They are async-signal-safe, once
// boot_id() has been called.

// Begins the first line. `recorded`: the number of events since the start.
JsonLine agent_header(const Worker& worker, const CallRecorder& recorder, uint64_t recorded,
                      absl::string_view reason, FlightDump dump);
// The line of an event of the worker with the incarnation `self`, but for its end.
JsonLine event_line(const CallEvent& event, uint64_t self);
void add_parent(JsonLine& line, const CallParent& parent);
// The line of a member of the group, but for its end.
JsonLine member_line(const Worker& member);

}  // namespace gradwire::rpc
