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

// What a key holds in etcd.
struct EtcdValue {
  std::optional<std::string> value;  // None: there is no such key.
  int64_t mod_revision = 0;          // The revision of its last change; 0: there is no such key.
};

// Out of an answer that concerns `key` alone. An error if it says anything else, or ResourceExhausted if the
// value, which somebody else must have written, is over the limit.
absl::StatusOr<EtcdValue> parse_etcd_value(const EtcdClient& client, etcdserverpb::RangeResponse& response,
                                           absl::string_view key);

// The end of the range of all keys that begin with `prefix`, which is not all 0xff.
std::string end_of_prefix(std::string prefix);

// Looks at keys of etcd, and waits for them. Keys are whole, with the store's prefix. Thread-safe.
class EtcdReader {
 public:
  explicit EtcdReader(EtcdClient& client, Clock& clock) : client_(client), clock_(clock) {}

  struct Found {
    EtcdValue now;
    int64_t revision;  // Of all of etcd, when it looked.
  };
  absl::StatusOr<Found> get(const std::string& key, absl::Time deadline);
  absl::StatusOr<int64_t> count_under(const std::string& prefix, absl::Time deadline);

  // Waits for a value other than `last_value`, or any; none at the deadline.
  absl::StatusOr<std::optional<std::string>> watch(const std::string& key,
                                                   std::optional<absl::string_view> last_value,
                                                   absl::Time deadline);
  // Waits until all keys are there at one moment. Returns the indices of those that are not at the deadline.
  absl::StatusOr<std::vector<std::size_t>> wait(const std::vector<std::string>& keys, absl::Time deadline);

 private:
  struct Stream;

  // Watches from `revision` on, through restarts of etcd and from member to member.
  struct Watched {
    bool timed_out = false;
    std::optional<std::string> value;  // None, unless timed out: look again.
  };
  absl::StatusOr<Watched> watch_from(const std::string& key, std::optional<absl::string_view> last_value,
                                     int64_t revision, absl::Time deadline);
  // One stream, until it has ended or served its purpose.
  grpc::Status follow(Stream& stream, const EtcdMember& member, grpc::ClientContext& context);

  struct Missing {
    std::vector<std::size_t> indices;
    int64_t revision;
  };
  // Which of the keys are missing at one moment. Begins with keys[start]; `first_only`: stops at the first.
  absl::StatusOr<Missing> look_for(const std::vector<std::string>& keys, std::size_t start, bool first_only,
                                   absl::Time deadline);

  EtcdClient& client_;
  Clock& clock_;
};

}  // namespace gradwire::store
