#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gradwire/collectives/cpu/bytes/span.h"

namespace gradwire::collectives::cpu {

// The collectives of one member of a group, on bytes. All members must call the same operations in the same
// order with the same sizes, one at a time; only all_gather and all_to_all compare the sizes. An operation
// returns when this member's part is done; then no other member uses its memory any more. Results have the
// same bits on all members. Errors name members as "rank N": Unavailable (a member is gone) or
// DeadlineExceeded (a member did not arrive). After one of these, every call returns Aborted.
class ByteCollectives {
 public:
  virtual ~ByteCollectives() = default;

  virtual absl::Status barrier(absl::Time deadline) = 0;
  virtual absl::Status broadcast(Span data, int root, absl::Time deadline) = 0;
  // `data` of members other than the root does not change.
  virtual absl::Status reduce(Span data, int root, const Reducer& reducer, absl::Time deadline) = 0;
  virtual absl::Status all_reduce(Span data, const Reducer& reducer, absl::Time deadline) = 0;
  // Lists have one span for each member, all of the same size except in all_gather and all_to_all. In gather
  // and scatter only the root's list is used.
  virtual absl::Status gather(Span data, absl::Span<const Span> outputs, int root, absl::Time deadline) = 0;
  // outputs[i] has the size of the data of member i. If it has not, on one host: this member gets
  // InvalidArgument, which names the member and both sizes, the other members are not affected, and the group
  // stays usable. Over several hosts: this member gets an error, each other one its result or an error, and
  // the group is broken.
  virtual absl::Status all_gather(Span data, absl::Span<const Span> outputs, absl::Time deadline) = 0;
  virtual absl::Status scatter(Span data, absl::Span<const Span> inputs, int root, absl::Time deadline) = 0;
  virtual absl::Status reduce_scatter(Span output, absl::Span<const Span> inputs, const Reducer& reducer,
                                      absl::Time deadline) = 0;
  // Sizes may differ, but rank i must send to rank j as many bytes as j expects from i. Otherwise
  // InvalidArgument, which names both sizes.
  virtual absl::Status all_to_all(absl::Span<const Span> outputs, absl::Span<const Span> inputs,
                                  absl::Time deadline) = 0;
};

// Declares the overrides of a final class.
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
