#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gradwire {

// The resource that a failed system call was to provide, where the error number alone does not say which
// limit was reached.
enum class Resource : uint8_t {
  kAny,
  kThread,   // a thread or a process
  kMapping,  // a mapping of memory
  kWatch,    // a descriptor in an epoll instance
};

// Whether the error number means that this process, its user or this host has nothing left of a resource:
// descriptors, memory, threads, sizes of files, space. Such an error says nothing about a peer, and the same
// call may succeed later. EAGAIN is one only for kThread.
bool is_shortage(int error, Resource resource = Resource::kAny);

// The status of a failed system call. For a shortage: ResourceExhausted "WHAT: TEXT OF ERRNO; the limit is
// RLIMIT_NOFILE = 1024 (ulimit -n)", for which is_local_shortage() is true. For any other error:
// errno_status(). It opens no file.
absl::Status system_status(absl::string_view what, int error, Resource resource = Resource::kAny);

// Whether the status comes from system_status() in this process, and reports a shortage. False for other
// limits, such as the flow window of a peer or the limits of a caller, and for errors from other processes.
bool is_local_shortage(const absl::Status& status);

}  // namespace gradwire
