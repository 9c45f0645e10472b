#include "gradwire/base/process/shortage.h"

#include <sys/resource.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire {
namespace {

// A status that travels to another process loses it: there the shortage is that of a peer.
constexpr absl::string_view kLocalPayload = "gradwire/local";

std::string limit(absl::string_view name, int resource, absl::string_view command) {
  rlimit value = {};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &value) != 0) return std::string(name);
  return absl::StrCat(name, " = ",
                      value.rlim_cur == RLIM_INFINITY ? "unlimited" : absl::StrCat(value.rlim_cur), " (",
                      command, ")");
}

// Several limits can be the cause of one error. Those that the process can read without a descriptor are
// named with their values.
std::string limit_of(int error, Resource resource) {
  switch (error) {
    case EMFILE:
      return limit("RLIMIT_NOFILE", RLIMIT_NOFILE, "ulimit -n");
    case ENFILE:
      return "that of all open files of this host (sysctl fs.file-max)";
    case EFBIG:
      return limit("RLIMIT_FSIZE", RLIMIT_FSIZE, "ulimit -f");
    case EDQUOT:
      return "the user's quota on the file system";
    case ENOSPC:
      return resource == Resource::kWatch ? "sysctl fs.epoll.max_user_watches"
                                          : "the space of the file system";
    case ENOBUFS:
      return "the kernel's memory for sockets (sysctl net.core, or the memory limit of the control group)";
    case EAGAIN:
      return absl::StrCat(limit("RLIMIT_NPROC", RLIMIT_NPROC, "ulimit -u"),
                          ", pids.max of the control group, or sysctl kernel.threads-max");
    case ENOMEM:
      if (resource == Resource::kMapping)
        return absl::StrCat(limit("RLIMIT_AS", RLIMIT_AS, "ulimit -v"),
                            ", sysctl vm.max_map_count, or vm.overcommit_memory");
      [[fallthrough]];
    default:
      return "the memory of this host, or of the control group (memory.max)";
  }
}

}  // namespace

bool is_shortage(int error, Resource resource) {
  switch (error) {
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return true;
    case EAGAIN:
      return resource == Resource::kThread;
    default:
      return false;
  }
}

absl::Status system_status(absl::string_view what, int error, Resource resource) {
  if (!is_shortage(error, resource)) return errno_status(what, error);
  absl::Status status = absl::ResourceExhaustedError(absl::StrCat(
      what, ": ", std::generic_category().message(error), "; the limit is ", limit_of(error, resource)));
  status.SetPayload(kLocalPayload, absl::Cord());
  return status;
}

bool is_local_shortage(const absl::Status& status) {
  return absl::IsResourceExhausted(status) && status.GetPayload(kLocalPayload).has_value();
}

}  // namespace gradwire
