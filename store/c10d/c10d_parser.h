#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/store/c10d/c10d_protocol.h"

namespace gradwire::store {

// A query of a client (c10d_protocol.h), with its fields.
struct C10dRequest {
  C10dQuery query = C10dQuery::kPing;
  // The strings in their order, also those of a list. Keys are as on the wire.
  std::vector<std::string> strings;
  // The number of kAdd; the nonce of kPing; the magic of kValidate.
  uint64_t number = 0;
};

// Splits the bytes that a client of PyTorch's TCPStore sends into requests. Each length is checked against
// its limit before its bytes are accepted, and memory is only taken for bytes that have arrived. Pure; not
// thread-safe.
class C10dParser {
 public:
  // Takes bytes from the front of `bytes`. Returns true with the next request if it is complete; false if all
  // bytes have been taken and more are needed. InvalidArgument for an unknown query; ResourceExhausted for a
  // length over its limit. After an error the parser must not be used.
  absl::StatusOr<bool> read(absl::string_view& bytes, C10dRequest& request);

  // Whether the stream is between two requests.
  bool between_requests() const { return stage_ == Stage::kQuery; }

 private:
  enum class Stage { kQuery, kCount, kLength, kString, kNumber };

  absl::Status begin_query(uint8_t code);
  absl::Status begin_list(uint64_t count);
  absl::Status begin_string(uint64_t length);
  // Chooses the stage behind a string, a list or the query. Returns whether the request is complete.
  bool next();
  // Collects `size` bytes of a number. Returns whether they are complete.
  bool collect(absl::string_view& bytes, std::size_t size);

  Stage stage_ = Stage::kQuery;
  C10dRequest request_;
  // The bytes of the number that is being read.
  std::string number_;
  uint64_t strings_left_ = 0;
  std::size_t string_bytes_left_ = 0;
  // Size of the number behind the strings that has not been read; 0 without one.
  std::size_t number_bytes_ = 0;
  bool is_list_ = false;
  std::size_t list_bytes_ = 0;
};

}  // namespace gradwire::store
