#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/proto/store.pb.h"
#include "gradwire/store/c10d/c10d_parser.h"

namespace gradwire::store {

// Translates for one client of PyTorch's TCPStore: its bytes (c10d_protocol.h) into calls of a TcpStore's
// server (proto/store.proto), and the answers into bytes. So a client of PyTorch and one of Gradwire that use
// the same key mean the same value.
//
// The key K of a user is "/K" on the wire. The key "init/" is the number of workers that have connected,
// which the server counts together with Gradwire's workers. Other keys are refused.
//
// Pure; not thread-safe.
class C10dSession {
 public:
  // The server's side. Its methods are called from receive().
  class Server {
   public:
    virtual ~Server() = default;
    // Makes a call. Its answer must be passed to answer(), during this call or, if the request waits, later.
    virtual absl::Status call(const proto::Request& request) = 0;
    // Ends a call that waits; it must not be answered any more. 0: the last wait was answered already, but
    // the client does not act on it.
    virtual void cancel(uint64_t request) = 0;
    // Counts `n` workers as connected and returns how many are.
    virtual int64_t add_workers(int64_t n) = 0;
  };

  // `client` is random and not 0.
  explicit C10dSession(uint64_t client) : client_(client) {}

  // Opens the session at the server. Must be called once, before receive().
  absl::Status start(Server& server);
  // Takes bytes that follow the greeting. After an error the connection must be closed.
  absl::Status receive(absl::string_view bytes, Server& server);
  // Takes an answer of the server. An error, also if the answer has an error code: the protocol has no error
  // answers, so the connection must be closed.
  absl::Status answer(const proto::Response& response);
  // Returns the bytes for the client since the last call.
  std::string take_output() { return std::exchange(output_, {}); }
  std::size_t output_bytes() const { return output_.size(); }

 private:
  absl::Status handle(const C10dRequest& request, Server& server);
  // A query for the number of workers.
  absl::Status handle_workers(const C10dRequest& request, Server& server);
  absl::Status wait(const C10dRequest& request, Server& server);
  absl::Status multi_get(const C10dRequest& request, Server& server);
  absl::Status multi_set(const C10dRequest& request, Server& server);
  absl::Status call(C10dQuery query, proto::Request& request, Server& server);
  void put_value(const proto::WatchResponse& response);

  const uint64_t client_;
  C10dParser parser_;
  std::string output_;
  uint64_t next_id_ = 1;
  // The queries of the calls that have not been answered: the one that is being made, and one that waits.
  HashMap<uint64_t, C10dQuery> calls_;
  // The id of the call that waits; 0 if none does.
  uint64_t waiting_ = 0;
};

}  // namespace gradwire::store
