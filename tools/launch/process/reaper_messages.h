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

// What the launcher and its reaper say to each other, over a stream socket: one request, one reply. Both
// are the same program, so these travel as they lie in memory.
struct ReaperRequest {
  enum class Kind : int32_t {
    kStart,        // with the three standard descriptors; packed_start() follows
    kEnding,       // of `worker`
    kSignalGroup,  // `signal` to `worker` and its group
    kEndRest,      // `signal` to what workers left behind
  };
  Kind kind = Kind::kStart;
  pid_t worker = 0;
  int32_t signal = 0;
  uint64_t packed_bytes = 0;  // of what follows
};

struct ReaperReply {
  StartedProcess started;        // kStart, and with a process its pidfd
  std::optional<Ending> ending;  // kEnding; the launcher adds the time
  bool nothing_left = false;     // kEndRest
};
static_assert(std::is_trivially_copyable_v<ReaperReply>);

// More than any system lets a program be started with.
inline constexpr size_t kMaxPackedBytes = size_t{16} << 20;

// A WorkerStart but for its descriptors.
std::string packed_start(const WorkerStart& start);
std::optional<WorkerStart> unpacked_start(const std::string& packed);

// All of it, with at most 4 descriptors; false when the other end is gone. No SIGPIPE.
bool send_all(int socket, const void* data, size_t size, const std::vector<int>& descriptors = {});
bool receive_all(int socket, void* data, size_t size, std::vector<Descriptor>* descriptors = nullptr);

}  // namespace gradwire::tools
