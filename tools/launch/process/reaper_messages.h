#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "gradwire/base/io/descriptor.h"
#include "gradwire/tools/launch/process/worker_process.h"

namespace gradwire::tools {

// The messages between the launcher and its reaper, over a stream socket: one request, then one reply. Both
// ends are the same program, so the structs are sent as they are in memory.
struct ReaperRequest {
  enum class Kind : int32_t {
    kStart,        // With the three standard descriptors; packed_start() follows.
    kEnding,       // How `worker` ended.
    kSignalGroup,  // Send `signal` to `worker` and its group.
    kEndRest,      // Send `signal` to the processes that workers left behind.
  };
  Kind kind = Kind::kStart;
  pid_t worker = 0;
  int32_t signal = 0;
  uint64_t packed_bytes = 0;  // Size of the bytes that follow.
};

struct ReaperReply {
  StartedProcess started;        // For kStart; the worker's pidfd is sent with it.
  std::optional<Ending> ending;  // For kEnding; the launcher adds the time.
  bool nothing_left = false;     // For kEndRest.
};
static_assert(std::is_trivially_copyable_v<ReaperReply>);

// More than the size of arguments and environment that any system allows.
inline constexpr size_t kMaxPackedBytes = size_t{16} << 20;

// Serializes a WorkerStart without its descriptors, and parses the result (nullopt if malformed).
std::string packed_start(const WorkerStart& start);
std::optional<WorkerStart> unpacked_start(const std::string& packed);

// Sends or receives all bytes, with at most 4 descriptors. Returns false if the other end is closed. Does not
// raise SIGPIPE.
bool send_all(int socket, const void* data, size_t size, const std::vector<int>& descriptors = {});
bool receive_all(int socket, void* data, size_t size, std::vector<Descriptor>* descriptors = nullptr);

}  // namespace gradwire::tools
