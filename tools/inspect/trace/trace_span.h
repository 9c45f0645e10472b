#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace gradwire::inspect {

// A call, as all workers name it: the incarnation of its caller, and the caller's number of it. {0, 0}: none.
using CallIdentity = std::pair<uint64_t, uint64_t>;

enum class SpanKind {
  kCall,        // At the caller: from the request to the answer
  kHandler,     // At the callee: from the arrival of the request to the sending of the answer
  kPass,        // A backward pass in one worker
  kCollective,  // An operation of a process group
  kOperator,    // An event of libtorch's profiler
};

// A piece of work of one worker.
struct TraceSpan {
  SpanKind kind = SpanKind::kCall;
  std::string name;
  // The other worker of a call, or the group of a collective; may be empty.
  std::string peer;
  // The result: "OK", the name of an error's code, or empty if it had not ended.
  std::string result;
  // By the clock of the worker, in nanoseconds. `end` is not before `begin`.
  int64_t begin = 0;
  int64_t end = 0;
  // kHandler: when the handler began to run, after it had waited for its turn. Else `begin`.
  int64_t ran = 0;
  // kCall and kHandler: the call. kPass: the context, which all workers of the pass have in common.
  // kCollective: the group and the sequence number. Else {0, 0}.
  CallIdentity id;
  // The handled call in which a call was made, if any.
  CallIdentity parent;
  // The two halves of the id of the trace to which it belongs (rpc/trace/trace_context.h); else {0, 0}.
  CallIdentity trace;
  // kOperator: the thread, whose spans contain each other.
  uint64_t thread = 0;
};

// The part of a trace that one worker has recorded.
struct WorkerTrace {
  std::string name;
  // Workers with the same text have the same clock; empty if it is not known.
  std::string host;
  uint64_t incarnation = 0;
  int64_t process = 0;
  std::vector<TraceSpan> spans;
  // The names of the threads of kOperator; others are named by their number.
  std::map<uint64_t, std::string> thread_names;
  // By how much the wall clock of the worker is ahead of the clock of the spans, in nanoseconds; 0: not
  // known.
  int64_t wall_ahead = 0;
  // The number of spans that the worker had recorded, and overwritten before they were read.
  uint64_t overwritten = 0;
  // The number of lines of its records that could not be read.
  uint64_t damaged = 0;
};

}  // namespace gradwire::inspect
