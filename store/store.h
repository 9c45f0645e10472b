#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"

namespace gradwire::store {

// Whether `status` is the DeadlineExceeded of a wait that the store answered: what was waited for is not
// there. False for the DeadlineExceeded of a call that the store did not answer.
bool is_wait_timeout(const absl::Status& status);

// A small table of keys and values that the processes of a job share: how they find one another, number
// themselves and agree before any other connection stands. Keys and values are bytes; a value may be empty;
// store/memory/limits.h bounds both.
//
// Every call ends by a deadline: the timeout it was given, else timeout(), 300 s unless set. A timeout of
// zero looks once, an infinite one waits for ever. A wait that runs out ends with DeadlineExceeded, which
// names the keys that are missing, the store and the time waited. So does a call that the store does not
// answer in time, because its host is paused or cut off; is_wait_timeout() tells the two apart.
//
// The methods without try_ throw Error and are for programs; those with try_ return the same as a Status and
// are for layers that hand errors on themselves. Common to all: ResourceExhausted when a limit of
// store/memory/limits.h is passed, Unavailable when the process or file behind the store cannot be reached.
//
// Thread-safe. A store outlives the calls on it; nothing runs callbacks.
class Store {
 public:
  // timeout() unless it is set: 300 s.
  static constexpr absl::Duration kDefaultTimeout = absl::Seconds(300);
  using Timeout = std::optional<absl::Duration>;  // None: timeout().

  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Sets the key, whether it exists or not, and wakes those who wait for it.
  void set(absl::string_view key, absl::string_view value);
  // Waits until the key is there.
  std::string get(absl::string_view key);
  // Adds to a decimal number and returns the sum; a missing key counts as 0. InvalidArgument if the value is
  // no number or the sum does not fit.
  int64_t add(absl::string_view key, int64_t n);
  // Sets `desired` if the value equals `expected`, or if the key is missing and `expected` is empty. Returns
  // the value the key has afterwards, so success is a result equal to `desired`; a missing key that stays
  // missing gives back `expected` (as torch.distributed's stores do).
  std::string compare_set(absl::string_view key, absl::string_view expected, absl::string_view desired);
  // Whether the key was there.
  bool delete_key(absl::string_view key);
  // Number of keys in the store; in a PrefixStore, under its prefix.
  int64_t num_keys();
  // Waits until all the keys are there at the same moment.
  void wait(const std::vector<std::string>& keys);
  // As wait(keys), for at most `timeout` instead of timeout().
  void wait(const std::vector<std::string>& keys, absl::Duration timeout);
  // Waits until the key is there with a value other than `last_value` and returns it. A value that came and
  // went between two looks may be missed; deleting the key is no change.
  std::string watch(absl::string_view key, absl::string_view last_value, Timeout timeout = std::nullopt);

  // As the methods without try_, and as described there; an error is returned. `timeout`: none is timeout().
  absl::Status try_set(absl::string_view key, absl::string_view value, Timeout timeout = std::nullopt);
  // As get: waits until the key is there.
  absl::StatusOr<std::string> try_get(absl::string_view key, Timeout timeout = std::nullopt);
  // As add; InvalidArgument where add throws it.
  absl::StatusOr<int64_t> try_add(absl::string_view key, int64_t n, Timeout timeout = std::nullopt);
  // As compare_set: the value that the key has afterwards.
  absl::StatusOr<std::string> try_compare_set(absl::string_view key, absl::string_view expected,
                                              absl::string_view desired, Timeout timeout = std::nullopt);
  // As delete_key: whether the key was there.
  absl::StatusOr<bool> try_delete_key(absl::string_view key, Timeout timeout = std::nullopt);
  // As num_keys.
  absl::StatusOr<int64_t> try_num_keys(Timeout timeout = std::nullopt);
  // Only the keys that begin with `prefix`.
  absl::StatusOr<int64_t> try_num_keys_under(absl::string_view prefix, Timeout timeout = std::nullopt);
  // As wait. An empty list is OK at once.
  absl::Status try_wait(const std::vector<std::string>& keys, Timeout timeout = std::nullopt);
  // As watch: the first value seen other than `last_value`.
  absl::StatusOr<std::string> try_watch(absl::string_view key, absl::string_view last_value,
                                        Timeout timeout = std::nullopt);

  // For calls that begin later. Zero and negative: every wait looks once.
  void set_timeout(absl::Duration timeout);
  // What a call without a timeout of its own may take.
  absl::Duration timeout() const;

  // What and where it is, for messages: "TcpStore at ps.example:29500", "FileStore /data/rendezvous".
  virtual std::string description() const = 0;

 protected:
  // Waits are measured on `clock`, which must outlive the store.
  explicit Store(absl::Duration timeout = kDefaultTimeout, Clock& clock = Clock::system());

  // The clock of this store's deadlines.
  Clock& clock() const { return clock_; }

 private:
  // What each kind implements. `deadline` is a time of clock(); sizes have been checked. A call that need not
  // wait is tried even when the deadline has passed.
  virtual absl::Status do_set(absl::string_view key, absl::string_view value, absl::Time deadline) = 0;
  virtual absl::StatusOr<int64_t> do_add(absl::string_view key, int64_t n, absl::Time deadline) = 0;
  virtual absl::StatusOr<std::string> do_compare_set(absl::string_view key, absl::string_view expected,
                                                     absl::string_view desired, absl::Time deadline) = 0;
  virtual absl::StatusOr<bool> do_delete_key(absl::string_view key, absl::Time deadline) = 0;
  virtual absl::StatusOr<int64_t> do_num_keys(absl::string_view prefix, absl::Time deadline) = 0;
  // Waits for all keys; at the deadline returns those that are missing, which makes the caller's
  // DeadlineExceeded.
  virtual absl::StatusOr<std::vector<std::string>> do_wait(const std::vector<std::string>& keys,
                                                           absl::Time deadline) = 0;
  // Waits for a value other than `last_value`, or for any; none at the deadline.
  virtual absl::StatusOr<std::optional<std::string>> do_watch(absl::string_view key,
                                                              std::optional<absl::string_view> last_value,
                                                              absl::Time deadline) = 0;

  absl::Time deadline_of(Timeout timeout) const;
  absl::StatusOr<std::string> wait_for_value(absl::string_view key,
                                             std::optional<absl::string_view> last_value, Timeout timeout);

  Clock& clock_;

  mutable Mutex timeout_mutex_;
  absl::Duration timeout_ ABSL_GUARDED_BY(timeout_mutex_);
};

// The declarations of a kind's own do_ methods.
#define GRADWIRE_STORE_OPERATIONS_                                                                     \
  absl::Status do_set(absl::string_view key, absl::string_view value, absl::Time deadline) override;   \
  absl::StatusOr<int64_t> do_add(absl::string_view key, int64_t n, absl::Time deadline) override;      \
  absl::StatusOr<std::string> do_compare_set(absl::string_view key, absl::string_view expected,        \
                                             absl::string_view desired, absl::Time deadline) override; \
  absl::StatusOr<bool> do_delete_key(absl::string_view key, absl::Time deadline) override;             \
  absl::StatusOr<int64_t> do_num_keys(absl::string_view prefix, absl::Time deadline) override;         \
  absl::StatusOr<std::vector<std::string>> do_wait(const std::vector<std::string>& keys,               \
                                                   absl::Time deadline) override;                      \
  absl::StatusOr<std::optional<std::string>> do_watch(                                                 \
      absl::string_view key, std::optional<absl::string_view> last_value, absl::Time deadline) override

}  // namespace gradwire::store
