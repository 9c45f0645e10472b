#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace gradwire::rpc {

// What becomes of a call of a function that is registered as idempotent (GRADWIRE_RPC_IDEMPOTENT) when its connection
// breaks before the answer: it is made again, within its deadline, until the worker is known to be dead or to have
// left. All other calls fail with Unavailable then, and so do these when they carry or return RRefs, belong to an
// autograd context, are ordered() or made by remote(), or go to the calling worker itself.
struct RetryOptions {
  // Of one call, the first included. 1 or less: none is made again.
  int max_attempts = 10;
  // Before the second attempt; twice as long before each one after that, but no longer than max_backoff.
  absl::Duration first_backoff = absl::Milliseconds(10);
  // The longest pause between two attempts.
  absl::Duration max_backoff = absl::Seconds(1);

  // Of the answers that this worker has given to such calls of one other worker: how many of them, of how many bytes in
  // all, and how long they are kept for repetitions. The function runs again for a repetition that comes after that.
  std::size_t max_answers = 1'024;
  // Bytes of those answers in all.
  uint64_t max_answer_bytes = uint64_t{64} << 20;
  // How long each is kept.
  absl::Duration keep_answers = absl::Seconds(60);

  // What comes after the attempt of this number, the first being 1.
  absl::Duration backoff_after(int attempt) const {
    absl::Duration backoff = first_backoff;
    for (int i = 1; i < attempt && backoff < max_backoff; ++i) backoff *= 2;
    return backoff < max_backoff ? backoff : max_backoff;
  }
};

}  // namespace gradwire::rpc
