#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/security/security_options.h"

namespace gradwire::tools {

// A job of a launcher on this host, as the launcher describes it for other programs of its user.
struct RunningJob {
  // The id of the job: the launcher's --rdzv_id, or the one that it has chosen.
  std::string id;
  std::string program;
  // The process id of the launcher.
  int64_t launcher = 0;
  absl::Time began;
  // "host:port" of the workers' store.
  std::string store;
  // How a process that observes the job proves itself: the names of files, and `insecure`. The rest is unset.
  // There is no secret in it.
  SecurityOptions security;
  // The name for the policies of the workers. With certificates: that in the certificate.
  std::string observer;
};

// The maximum size of to_text(), in bytes.
inline constexpr std::size_t kMostJobText = 64 << 10;

// The content of a job's file: a JSON object.
std::string to_text(const RunningJob& job);
// Parses such a file. InvalidArgument if it is not one.
absl::StatusOr<RunningJob> parse_running_job(absl::string_view text);

}  // namespace gradwire::tools
