#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/store/etcd/etcd_client.h"

namespace gradwire::store {

// The value of a key in etcd.
struct EtcdValue {
  std::optional<std::string> value;  // nullopt if the key does not exist.
  int64_t mod_revision = 0;          // The revision of its last change; 0 if the key does not exist.
};

// Parses an answer for `key` alone. An error if the answer contains anything else; ResourceExhausted if the
// value (written by another program) is over the limit.
absl::StatusOr<EtcdValue> parse_etcd_value(const EtcdClient& client, etcdserverpb::RangeResponse& response,
                                           absl::string_view key);

// Returns the end of the range of all keys that begin with `prefix`. Not all bytes of `prefix` may be 0xff.
std::string end_of_prefix(std::string prefix);

// Reads keys of etcd and waits for them. Keys are full keys, with the store's prefix. Thread-safe.
class EtcdReader {
 public:
  explicit EtcdReader(EtcdClient& client, Clock& clock) : client_(client), clock_(clock) {}

  struct Found {
    EtcdValue now;
    int64_t revision;  // etcd's revision when the key was read.
  };
  absl::StatusOr<Found> get(const std::string& key, absl::Time deadline);
  absl::StatusOr<int64_t> count_under(const std::string& prefix, absl::Time deadline);

  // Waits for a value other than `last_value`, or for any value if that is nullopt. Returns nullopt at the
  // deadline.
  absl::StatusOr<std::optional<std::string>> watch(const std::string& key,
                                                   std::optional<absl::string_view> last_value,
                                                   absl::Time deadline);
  // The keys that begin with `prefix`, in ascending order and without their first `skip` bytes.
  // ResourceExhausted if they take more than kMaxListBytes.
  absl::StatusOr<std::vector<std::string>> list_under(const std::string& prefix, std::size_t skip,
                                                      absl::Time deadline);
  // Whether all keys exist at one moment.
  absl::StatusOr<bool> all_exist(const std::vector<std::string>& keys, absl::Time deadline);
  // Waits until all keys exist at one moment. At the deadline returns the indices of the missing keys.
  absl::StatusOr<std::vector<std::size_t>> wait(const std::vector<std::string>& keys, absl::Time deadline);

 private:
  struct Stream;

  // Result of watch_from().
  struct Watched {
    bool timed_out = false;
    std::optional<std::string> value;  // If nullopt, and not timed out, read the key again.
  };
  // Watches from `revision` on, across restarts of etcd and from member to member.
  absl::StatusOr<Watched> watch_from(const std::string& key, std::optional<absl::string_view> last_value,
                                     int64_t revision, absl::Time deadline);
  // Reads one watch stream until it ends or a result is known.
  grpc::Status follow(Stream& stream, const EtcdMember& member, grpc::ClientContext& context);

  struct Missing {
    std::vector<std::size_t> indices;
    int64_t revision;
  };
  // Finds the keys that are missing at one moment. Begins with keys[start]. With `first_only`, stops at the
  // first missing key.
  absl::StatusOr<Missing> find_missing(const std::vector<std::string>& keys, std::size_t start,
                                       bool first_only, absl::Time deadline);

  EtcdClient& client_;
  Clock& clock_;
};

}  // namespace gradwire::store
