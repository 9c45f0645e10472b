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

// Whether `status` is the DeadlineExceeded of a wait that the store answered: the awaited key or value is not
// there. False if the store did not answer the call before the deadline.
bool is_wait_timeout(const absl::Status& status);

// A small table of keys and values that the processes of a job share. They use it to find one another, to
// assign ranks and to agree on settings before any other connection exists. Keys and values are bytes; a
// value may be empty. store/memory/limits.h bounds both.
//
// Every call has a timeout: its argument, else timeout(), which is 300 s unless set. A timeout of zero checks
// once; an infinite timeout waits indefinitely. A wait that times out fails with DeadlineExceeded, which
// names the missing keys, the store and the time waited. A call that the store does not answer in time,
// because its host is paused or cut off, also fails with DeadlineExceeded; is_wait_timeout() distinguishes
// the two.
//
// The methods without try_ throw Error and are for programs. The methods with try_ return the same error as a
// Status and are for layers that propagate errors. Errors of all methods: ResourceExhausted if a limit of
// store/memory/limits.h is exceeded, Unavailable if the process or file behind the store cannot be reached.
//
// Thread-safe. The store must outlive the calls on it. No method runs callbacks.
class Store {
 public:
  // The initial timeout().
  static constexpr absl::Duration kDefaultTimeout = absl::Seconds(300);
  using Timeout = std::optional<absl::Duration>;  // None: timeout().

  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Sets the key, whether it exists or not, and wakes the calls that wait for it.
  void set(absl::string_view key, absl::string_view value);
  // Waits until the key exists.
  std::string get(absl::string_view key);
  // Adds `n` to a decimal number and returns the sum; a missing key counts as 0. InvalidArgument if the value
  // is not a number or the sum does not fit 64 bits.
  int64_t add(absl::string_view key, int64_t n);
  // Sets `desired` if the value equals `expected`, or if the key is missing and `expected` is empty. Returns
  // the value the key has afterwards, so success is a result equal to `desired`; a missing key that stays
  // missing gives back `expected` (as torch.distributed's stores do).
  std::string compare_set(absl::string_view key, absl::string_view expected, absl::string_view desired);
  // Returns whether the key existed.
  bool delete_key(absl::string_view key);
  // Number of keys in the store; in a PrefixStore, under its prefix.
  int64_t num_keys();
  // Waits until all the keys exist at the same moment.
  void wait(const std::vector<std::string>& keys);
  // As wait(keys), for at most `timeout` instead of timeout().
  void wait(const std::vector<std::string>& keys, absl::Duration timeout);
  // Waits until the key has a value other than `last_value` and returns that value. A value that is replaced
  // quickly may be missed. Deleting the key does not count as a change.
  std::string watch(absl::string_view key, absl::string_view last_value, Timeout timeout = std::nullopt);

  // The try_ methods are as the methods above, but return errors. Without a `timeout` they use timeout().
  absl::Status try_set(absl::string_view key, absl::string_view value, Timeout timeout = std::nullopt);
  // As get: waits until the key exists.
  absl::StatusOr<std::string> try_get(absl::string_view key, Timeout timeout = std::nullopt);
  // As add; InvalidArgument where add throws it.
  absl::StatusOr<int64_t> try_add(absl::string_view key, int64_t n, Timeout timeout = std::nullopt);
  // As compare_set: the value that the key has afterwards.
  absl::StatusOr<std::string> try_compare_set(absl::string_view key, absl::string_view expected,
                                              absl::string_view desired, Timeout timeout = std::nullopt);
  // As delete_key: returns whether the key existed.
  absl::StatusOr<bool> try_delete_key(absl::string_view key, Timeout timeout = std::nullopt);
  // As num_keys.
  absl::StatusOr<int64_t> try_num_keys(Timeout timeout = std::nullopt);
  // Counts only the keys that begin with `prefix`.
  absl::StatusOr<int64_t> try_num_keys_under(absl::string_view prefix, Timeout timeout = std::nullopt);
  // As wait. Returns OK at once for an empty list.
  absl::Status try_wait(const std::vector<std::string>& keys, Timeout timeout = std::nullopt);
  // As watch: the first value seen other than `last_value`.
  absl::StatusOr<std::string> try_watch(absl::string_view key, absl::string_view last_value,
                                        Timeout timeout = std::nullopt);

  // Sets the timeout of calls that begin later. If it is zero or negative, every wait checks once.
  void set_timeout(absl::Duration timeout);
  // The timeout of a call without a timeout of its own.
  absl::Duration timeout() const;

  // The store's kind and location, for messages: "TcpStore at ps.example:29500", "FileStore
  // /data/rendezvous".
  virtual std::string description() const = 0;

 protected:
  // Waits are measured on `clock`, which must outlive the store.
  explicit Store(absl::Duration timeout = kDefaultTimeout, Clock& clock = Clock::system());

  // The clock of this store's deadlines.
  Clock& clock() const { return clock_; }

 private:
  // Each kind of store implements the do_ methods. `deadline` is a time of clock(). Sizes have been checked.
  // A call that need not wait is made even if the deadline has passed.
  virtual absl::Status do_set(absl::string_view key, absl::string_view value, absl::Time deadline) = 0;
  virtual absl::StatusOr<int64_t> do_add(absl::string_view key, int64_t n, absl::Time deadline) = 0;
  virtual absl::StatusOr<std::string> do_compare_set(absl::string_view key, absl::string_view expected,
                                                     absl::string_view desired, absl::Time deadline) = 0;
  virtual absl::StatusOr<bool> do_delete_key(absl::string_view key, absl::Time deadline) = 0;
  virtual absl::StatusOr<int64_t> do_num_keys(absl::string_view prefix, absl::Time deadline) = 0;
  // Waits for all keys. At the deadline it returns the missing keys, and the caller then fails with
  // DeadlineExceeded.
  virtual absl::StatusOr<std::vector<std::string>> do_wait(const std::vector<std::string>& keys,
                                                           absl::Time deadline) = 0;
  // Waits for a value other than `last_value`, or for any value if that is nullopt. Returns nullopt at the
  // deadline.
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

// Declares the do_ methods in a kind of store.
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
