#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/proto/store.pb.h"
#include "gradwire/store/c10d/c10d_protocol.h"
#include "gradwire/store/c10d/c10d_socket.h"

namespace gradwire::store {

// Makes one call of proto/store.proto at a server of PyTorch's TCPStore, over a connection that no other call
// uses. Where the protocol has no such query, the call is made of several:
//   Watch for a change       reads the value again and again, every 10 to 200 ms
//   NumKeys under a prefix   lists all keys
//   missing keys of a Wait   one kCheck for each key
// A change without an answer is followed by a kPing, so that it has been executed when the call returns.
//
// An object is for one call. Not thread-safe.
class C10dCalls {
 public:
  C10dCalls(C10dSocket& socket, Clock& clock, absl::Time deadline);

  // Fills in the result of the request. Errors of C10dSocket; ResourceExhausted for keys and values over the
  // limits of PyTorch's server. `broken` is set if the connection must not be used any more.
  absl::Status run(const proto::Request& request, proto::Response& response, bool& broken);

 private:
  absl::Status make(const proto::Request& request, proto::Response& response);
  // Checks the limits and sends nothing.
  absl::Status check(const proto::Request& request) const;
  absl::Status set(const proto::Request& request);
  absl::Status wait(const proto::WaitRequest& request, proto::WaitResponse& response);
  absl::Status watch(const proto::WatchRequest& request, proto::WatchResponse& response);
  absl::Status pop(const std::string& queue, proto::QueuePopResponse& response);
  absl::Status num_keys(const std::string& prefix, proto::NumKeysResponse& response);
  absl::StatusOr<std::vector<std::string>> list_keys(const std::string& prefix);
  absl::StatusOr<bool> all_exist(const std::vector<std::string>& keys);
  // Waits until all keys exist, at most until the deadline of the call. Returns whether they do.
  absl::StatusOr<bool> wait_for(const std::vector<std::string>& keys);
  absl::StatusOr<std::vector<std::string>> missing(const std::vector<std::string>& keys);
  absl::StatusOr<std::string> get(const std::string& key);
  absl::StatusOr<std::vector<std::string>> multi_get(const std::vector<std::string>& keys);
  absl::StatusOr<uint64_t> send_for_number(absl::string_view query);
  // Blocks for a while that gets longer each time; at most until the deadline.
  void pause();

  C10dSocket& socket_;
  Clock& clock_;
  const absl::Time deadline_;
  // The time by which the server must have answered a query that does not wait.
  const absl::Time answer_deadline_;
  absl::Duration next_pause_ = absl::Milliseconds(10);
};

}  // namespace gradwire::store
