#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gradwire/collectives/cpu/span.h"

namespace gradwire::collectives::cpu {

// The collectives of one member of a group, on bytes. Operations are called one at a time and in the same
// order, with the same sizes, by all members. They return when this member's part is done, and nothing of
// another's uses its memory any more. Results have the same bits on all members. Errors name members as "rank
// N": Unavailable (gone), DeadlineExceeded (waited for); after one of these every call returns Aborted.
class ByteCollectives {
 public:
  virtual ~ByteCollectives() = default;

  virtual absl::Status barrier(absl::Time deadline) = 0;
  virtual absl::Status broadcast(Span data, int root, absl::Time deadline) = 0;
  // `data` of others than the root stays as it is.
  virtual absl::Status reduce(Span data, int root, const Reducer& reducer, absl::Time deadline) = 0;
  virtual absl::Status all_reduce(Span data, const Reducer& reducer, absl::Time deadline) = 0;
  // Lists have a span for each member, in gather and scatter at the root alone. Their spans have one size.
  virtual absl::Status gather(Span data, absl::Span<const Span> outputs, int root, absl::Time deadline) = 0;
  virtual absl::Status all_gather(Span data, absl::Span<const Span> outputs, absl::Time deadline) = 0;
  virtual absl::Status scatter(Span data, absl::Span<const Span> inputs, int root, absl::Time deadline) = 0;
  virtual absl::Status reduce_scatter(Span output, absl::Span<const Span> inputs, const Reducer& reducer,
                                      absl::Time deadline) = 0;
  // Sizes may differ: what rank i sends to j is what j expects from i. InvalidArgument, naming both,
  // otherwise.
  virtual absl::Status all_to_all(absl::Span<const Span> outputs, absl::Span<const Span> inputs,
                                  absl::Time deadline) = 0;
};

// The overrides that a final class declares.
#define GRADWIRE_BYTE_COLLECTIVES                                                                         \
  absl::Status barrier(absl::Time deadline) override;                                                     \
  absl::Status broadcast(Span data, int root, absl::Time deadline) override;                              \
  absl::Status reduce(Span data, int root, const Reducer& reducer, absl::Time deadline) override;         \
  absl::Status all_reduce(Span data, const Reducer& reducer, absl::Time deadline) override;               \
  absl::Status gather(Span data, absl::Span<const Span> outputs, int root, absl::Time deadline) override; \
  absl::Status all_gather(Span data, absl::Span<const Span> outputs, absl::Time deadline) override;       \
  absl::Status scatter(Span data, absl::Span<const Span> inputs, int root, absl::Time deadline) override; \
  absl::Status reduce_scatter(Span output, absl::Span<const Span> inputs, const Reducer& reducer,         \
                              absl::Time deadline) override;                                              \
  absl::Status all_to_all(absl::Span<const Span> outputs, absl::Span<const Span> inputs,                  \
                          absl::Time deadline) override

}  // namespace gradwire::collectives::cpu
