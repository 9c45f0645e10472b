#pragma once

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/mutex.h"
#include "gradwire/security/secret.h"

namespace gradwire::security {

// The token that a launcher hands to a worker: a descriptor that the worker inherits, whose number is in an
// environment variable. Neither the command line nor the environment, which other programs can show, contains
// the token. The descriptor is that of a memory file sealed against changes. Each program of a worker can
// read it, also if several of them share it, because reading moves no offset.

// Returns a descriptor with the token, for children. It closes on exec: the launcher duplicates it in the
// child, between fork and exec. ResourceExhausted at a limit of the system; Unavailable if it
// refuses it for another reason.
absl::StatusOr<Descriptor> token_descriptor(const Secret& token);

// The token that this process inherited. Thread-safe.
class InheritedToken {
 public:
  // `variable`: the environment variable with the number.
  explicit InheritedToken(std::string variable) : variable_(std::move(variable)) {}

  // The first call reads the token, closes the descriptor and removes the variable, so that children do not
  // get the token by chance. Later calls return the same result. An empty secret if the variable is not set;
  // InvalidArgument, with the remedy, if it does not name the descriptor of a launcher.
  //
  // The first call changes the environment, which the C library does not protect: call it before other
  // threads set or remove variables.
  absl::StatusOr<Secret> read() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::StatusOr<Secret> take() const;

  const std::string variable_;

  Mutex mutex_;
  absl::optional<absl::StatusOr<Secret>> token_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::security
