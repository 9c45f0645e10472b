#include "gradwire/tools/launch/rendezvous/types.h"

#include "absl/strings/str_cat.h"

namespace gradwire::rendezvous {

std::string describe(const Failure& failure) {
  if (failure.rank < 0) return failure.message;
  std::string text = absl::StrCat("worker ", failure.rank, " (");
  if (!failure.role.empty()) absl::StrAppend(&text, "role ", failure.role, ", ");
  absl::StrAppend(&text, "local rank ", failure.local_rank, ", pid ", failure.pid, ") on ", failure.host);
  if (failure.signal != 0) {
    absl::StrAppend(&text, " was killed by signal ", failure.signal);
  } else {
    absl::StrAppend(&text, " ended with exit code ", failure.exit_code);
  }
  if (!failure.message.empty()) absl::StrAppend(&text, ": ", failure.message);
  return text;
}

}  // namespace gradwire::rendezvous
