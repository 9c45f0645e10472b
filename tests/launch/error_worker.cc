// Rank 1 ends with an uncaught Error; the other ranks wait until they are ended.

#include <unistd.h>

#include "absl/status/status.h"
#include "gradwire/base/error.h"
#include "gradwire/tools/launch_info.h"

int main() {
  const gradwire::LaunchInfo info = gradwire::LaunchInfo::from_env();
  if (info.rank == 1)
    throw gradwire::Error(gradwire::with_worker(absl::NotFoundError("no shard 7 here"), "server3"));
  while (true) pause();
}
