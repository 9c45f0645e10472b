#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/mutex.h"

namespace gradwire::store {

// Whether `status` is the DeadlineExceeded of a wait that the store answered: the awaited key or value is not
// there. False if the store did not answer the call before the deadline.
bool is_wait_timeout(const absl::Status& status);

// A small table of keys and values that the processes of a job share. They use it to find one another, to
// assign ranks and to agree on settings before any other connection exists. Keys and values are bytes; a
// value may be empty. store/interface/limits.h bounds both.
//
// A store also has queues of values, which have names of their own: a key and a queue with one name are
// independent of each other. A queue exists while it has items. wait() and check() accept a queue that exists
// in place of a key, as torch.distributed's stores do (not in an EtcdStore). num_keys() and list_keys() do
// not count queues, and delete_key() does not remove them.
//
// Every call has a timeout: its argument, else timeout(), which is 300 s unless set. A timeout of zero checks
// once; an infinite timeout waits indefinitely. A wait that times out fails with DeadlineExceeded, which
// names the missing keys, the store and the time waited. A call that the store does not answer in time,
// because its host is paused or cut off, also fails with DeadlineExceeded; is_wait_timeout() distinguishes
// the two.
//
// The methods without try_ throw Error and are for programs. The methods with try_ return the same error as a
// Status and are for layers that propagate errors. Errors of all methods: ResourceExhausted if a limit of
// store/interface/limits.h is exceeded, Unavailable if the process or file behind the store cannot be
// reached.
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
  // Appends the bytes of `value` to the key's value. A missing key is set to `value`.
  void append(absl::string_view key, absl::string_view value);
  // Returns whether the key existed.
  bool delete_key(absl::string_view key);
  // Number of keys in the store; in a PrefixStore, under its prefix.
  int64_t num_keys();
  // The names of these keys, in ascending order; in a PrefixStore, without its prefix. ResourceExhausted if
  // they take more than kMaxListBytes.
  std::vector<std::string> list_keys();
  // Returns whether all the keys exist now. Does not wait for them. True for an empty list.
  bool check(const std::vector<std::string>& keys);
  // Waits until all the keys exist at the same moment, and returns their values in the order of `keys`.
  // ResourceExhausted if the values together take more than kMaxMultiBytes. In an EtcdStore the values may be
  // of different moments.
  std::vector<std::string> multi_get(const std::vector<std::string>& keys);
  // Sets keys[i] to values[i] for each i, at one moment; in an EtcdStore one after the other. If a key is
  // given twice, its last value counts. InvalidArgument if the lists have different lengths;
  // ResourceExhausted if keys and values together take more than kMaxMultiBytes.
  void multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values);
  // Waits until all the keys exist at the same moment.
  void wait(const std::vector<std::string>& keys);
  // As wait(keys), for at most `timeout` instead of timeout().
  void wait(const std::vector<std::string>& keys, absl::Duration timeout);
  // Waits until the key has a value other than `last_value` and returns that value. A value that is replaced
  // quickly may be missed. Deleting the key does not count as a change.
  std::string watch(absl::string_view key, absl::string_view last_value, Timeout timeout = std::nullopt);

  // Appends an item to the end of a queue. If calls of queue_pop() wait, the one that began first gets it.
  void queue_push(absl::string_view queue, absl::string_view value);
  // Removes the first item of the queue and returns it. Waits until there is one; with a timeout of zero it
  // takes an item only if one is there now. An item is returned once. If the process or the connection fails
  // during the call, the item may be lost.
  std::string queue_pop(absl::string_view queue, Timeout timeout = std::nullopt);
  // Number of items in the queue; 0 if it does not exist.
  int64_t queue_len(absl::string_view queue);

  // Returns a second client of the same table, with the same timeout(), which is independent afterwards.
  // Calls on the two never wait for each other. The clone is not counted as a member of a world of a given
  // size.
  std::shared_ptr<Store> clone();

  // The try_ methods are as the methods above, but return errors. Without a `timeout` they use timeout().
  absl::Status try_set(absl::string_view key, absl::string_view value, Timeout timeout = std::nullopt);
  // As get: waits until the key exists.
  absl::StatusOr<std::string> try_get(absl::string_view key, Timeout timeout = std::nullopt);
  // As add; InvalidArgument where add throws it.
  absl::StatusOr<int64_t> try_add(absl::string_view key, int64_t n, Timeout timeout = std::nullopt);
  // As compare_set: the value that the key has afterwards.
  absl::StatusOr<std::string> try_compare_set(absl::string_view key, absl::string_view expected,
                                              absl::string_view desired, Timeout timeout = std::nullopt);
  // As append.
  absl::Status try_append(absl::string_view key, absl::string_view value, Timeout timeout = std::nullopt);
  // As delete_key: returns whether the key existed.
  absl::StatusOr<bool> try_delete_key(absl::string_view key, Timeout timeout = std::nullopt);
  // As num_keys.
  absl::StatusOr<int64_t> try_num_keys(Timeout timeout = std::nullopt);
  // Counts only the keys that begin with `prefix`.
  absl::StatusOr<int64_t> try_num_keys_under(absl::string_view prefix, Timeout timeout = std::nullopt);
  // As list_keys.
  absl::StatusOr<std::vector<std::string>> try_list_keys(Timeout timeout = std::nullopt);
  // Lists only the keys that begin with `prefix`, with their whole names.
  absl::StatusOr<std::vector<std::string>> try_list_keys_under(absl::string_view prefix,
                                                               Timeout timeout = std::nullopt);
  // As check. The timeout limits how long the store may take to answer.
  absl::StatusOr<bool> try_check(const std::vector<std::string>& keys, Timeout timeout = std::nullopt);
  // As multi_get. Returns an empty list at once for an empty list.
  absl::StatusOr<std::vector<std::string>> try_multi_get(const std::vector<std::string>& keys,
                                                         Timeout timeout = std::nullopt);
  // As multi_set.
  absl::Status try_multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values,
                             Timeout timeout = std::nullopt);
  // As wait. Returns OK at once for an empty list.
  absl::Status try_wait(const std::vector<std::string>& keys, Timeout timeout = std::nullopt);
  // As watch: the first value seen other than `last_value`.
  absl::StatusOr<std::string> try_watch(absl::string_view key, absl::string_view last_value,
                                        Timeout timeout = std::nullopt);
  // As queue_push.
  absl::Status try_queue_push(absl::string_view queue, absl::string_view value,
                              Timeout timeout = std::nullopt);
  // As queue_pop: the first item.
  absl::StatusOr<std::string> try_queue_pop(absl::string_view queue, Timeout timeout = std::nullopt);
  // As queue_len.
  absl::StatusOr<int64_t> try_queue_len(absl::string_view queue, Timeout timeout = std::nullopt);
  // As clone.
  absl::StatusOr<std::shared_ptr<Store>> try_clone(Timeout timeout = std::nullopt);

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

  // A key and its value.
  using Entry = std::pair<absl::string_view, absl::string_view>;
  // Result of a read of several keys.
  struct Values {
    // The values in the order of the keys, if all exist.
    std::vector<std::string> values;
    // The missing keys.
    std::vector<std::string> missing;
  };

  // The clock of this store's deadlines.
  Clock& clock() const { return clock_; }
  // Whether this is the process that opened the store, rather than a forked child of it.
  bool in_own_process() const { return mark_.here(); }

 private:
  // Whether a forked child may use the store: its operations open what they need there anew.
  virtual bool works_in_children() const { return false; }
  // Each kind of store implements the do_ methods. `deadline` is a time of clock(). Sizes have been checked.
  // A call that need not wait is made even if the deadline has passed.
  // Sets all entries, of which there is at least one.
  virtual absl::Status do_set(absl::Span<const Entry> entries, absl::Time deadline) = 0;
  virtual absl::Status do_append(absl::string_view key, absl::string_view value, absl::Time deadline) = 0;
  virtual absl::StatusOr<int64_t> do_add(absl::string_view key, int64_t n, absl::Time deadline) = 0;
  virtual absl::StatusOr<std::string> do_compare_set(absl::string_view key, absl::string_view expected,
                                                     absl::string_view desired, absl::Time deadline) = 0;
  virtual absl::StatusOr<bool> do_delete_key(absl::string_view key, absl::Time deadline) = 0;
  virtual absl::StatusOr<int64_t> do_num_keys(absl::string_view prefix, absl::Time deadline) = 0;
  virtual absl::StatusOr<std::vector<std::string>> do_list_keys(absl::string_view prefix,
                                                                absl::Time deadline) = 0;
  virtual absl::StatusOr<bool> do_check(const std::vector<std::string>& keys, absl::Time deadline) = 0;
  // Waits for all keys. At the deadline it returns the missing keys, and the caller then fails with
  // DeadlineExceeded.
  virtual absl::StatusOr<std::vector<std::string>> do_wait(const std::vector<std::string>& keys,
                                                           absl::Time deadline) = 0;
  // As do_wait, and returns the values. If they take more than kMaxMultiBytes: ResourceExhausted.
  virtual absl::StatusOr<Values> do_multi_get(const std::vector<std::string>& keys, absl::Time deadline) = 0;
  // Waits for a value other than `last_value`, or for any value if that is nullopt. Returns nullopt at the
  // deadline.
  virtual absl::StatusOr<std::optional<std::string>> do_watch(absl::string_view key,
                                                              std::optional<absl::string_view> last_value,
                                                              absl::Time deadline) = 0;
  virtual absl::Status do_queue_push(absl::string_view queue, absl::string_view value,
                                     absl::Time deadline) = 0;
  // Waits for an item. Returns nullopt at the deadline.
  virtual absl::StatusOr<std::optional<std::string>> do_queue_pop(absl::string_view queue,
                                                                  absl::Time deadline) = 0;
  virtual absl::StatusOr<int64_t> do_queue_len(absl::string_view queue, absl::Time deadline) = 0;
  // The caller sets the timeout of the new store.
  virtual absl::StatusOr<std::shared_ptr<Store>> do_clone(absl::Time deadline) = 0;

  // FailedPrecondition in a forked child of the process that opened this store.
  absl::Status check_process() const;
  absl::Time deadline_of(Timeout timeout) const;
  absl::StatusOr<std::string> wait_for_value(absl::string_view key,
                                             std::optional<absl::string_view> last_value, Timeout timeout);
  // The error of a wait for `what` that began at `start`.
  absl::Status timeout_error(absl::Time start, absl::string_view what, absl::string_view why) const;

  Clock& clock_;
  const ProcessMark mark_;

  mutable Mutex timeout_mutex_;
  absl::Duration timeout_ ABSL_GUARDED_BY(timeout_mutex_);
};

// Declares the do_ methods in a kind of store.
#define GRADWIRE_STORE_OPERATIONS_                                                                         \
  absl::Status do_set(absl::Span<const Entry> entries, absl::Time deadline) override;                      \
  absl::Status do_append(absl::string_view key, absl::string_view value, absl::Time deadline) override;    \
  absl::StatusOr<int64_t> do_add(absl::string_view key, int64_t n, absl::Time deadline) override;          \
  absl::StatusOr<std::string> do_compare_set(absl::string_view key, absl::string_view expected,            \
                                             absl::string_view desired, absl::Time deadline) override;     \
  absl::StatusOr<bool> do_delete_key(absl::string_view key, absl::Time deadline) override;                 \
  absl::StatusOr<int64_t> do_num_keys(absl::string_view prefix, absl::Time deadline) override;             \
  absl::StatusOr<std::vector<std::string>> do_list_keys(absl::string_view prefix, absl::Time deadline)     \
      override;                                                                                            \
  absl::StatusOr<bool> do_check(const std::vector<std::string>& keys, absl::Time deadline) override;       \
  absl::StatusOr<std::vector<std::string>> do_wait(const std::vector<std::string>& keys,                   \
                                                   absl::Time deadline) override;                          \
  absl::StatusOr<Values> do_multi_get(const std::vector<std::string>& keys, absl::Time deadline) override; \
  absl::StatusOr<std::optional<std::string>> do_watch(                                                     \
      absl::string_view key, std::optional<absl::string_view> last_value, absl::Time deadline) override;   \
  absl::Status do_queue_push(absl::string_view queue, absl::string_view value, absl::Time deadline)        \
      override;                                                                                            \
  absl::StatusOr<std::optional<std::string>> do_queue_pop(absl::string_view queue, absl::Time deadline)    \
      override;                                                                                            \
  absl::StatusOr<int64_t> do_queue_len(absl::string_view queue, absl::Time deadline) override;             \
  absl::StatusOr<std::shared_ptr<Store>> do_clone(absl::Time deadline) override

}  // namespace gradwire::store
