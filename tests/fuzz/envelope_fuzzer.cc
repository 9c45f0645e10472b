// Reads the input as an envelope between agents (proto/rpc.proto), and the values of its payload as those of
// a call.

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/codec_test_util.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/core/envelope.h"
#include "gradwire/tests/fuzz/fuzzing.h"

namespace {

using gradwire::fuzzing::require;
namespace proto = gradwire::proto;
namespace rpc = gradwire::rpc;

using Nested = std::map<std::string, std::vector<std::pair<int64_t, std::optional<std::string>>>>;

// Number of values or bytes in a decoded value, which must not exceed the number of input bytes.
std::size_t count(const std::vector<int64_t>& value) { return value.size(); }
std::size_t count(const std::string& value) { return value.size(); }
std::size_t count(const Nested& value) {
  std::size_t all = value.size();
  for (const auto& [key, list] : value) {
    all += key.size() + list.size();
    for (const auto& [number, text] : list) all += text.value_or("").size();
  }
  return all;
}

// A value decoded as a T is not larger than the input, and survives a round trip.
template <class T>
void check_container(const rpc::IncomingPayload& in, std::size_t bytes) {
  const absl::StatusOr<T> value = rpc::decode_first<T>(in);
  if (!value.ok()) return;
  require(count(*value) <= bytes, "more was decoded than the input has");
  const absl::StatusOr<T> decoded_again = rpc::round_trip<T>(*value);
  require(decoded_again.ok() && *decoded_again == *value, "a decoded value does not survive a round trip");
}

// A decoded number equals the one in the input. Decoding fails if the type cannot hold it, or if the input is
// not a number.
template <class T>
void check_integer(const rpc::IncomingPayload& in) {
  const absl::StatusOr<T> value = rpc::decode_first<T>(in);
  const proto::Value& sent = in.payload->values(0);
  const bool fits = sent.kind_case() == proto::Value::kInteger &&
                    sent.integer() >= std::numeric_limits<T>::min() &&
                    sent.integer() <= std::numeric_limits<T>::max();
  require(value.ok() == fits, "an integer is accepted or refused wrongly");
  require(!fits || *value == sent.integer(), "the wrong integer");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  rpc::EnvelopeBox envelope;
  if (!envelope->ParseFromArray(data, static_cast<int>(size))) return 0;
  const proto::Payload* payload = nullptr;
  if (envelope->has_request()) payload = &envelope->request().arguments();
  if (envelope->has_response()) payload = &envelope->response().result();
  // Tensors and references are handled by layers above this one.
  if (payload == nullptr || payload->values_size() == 0 || payload->tensors_size() != 0) return 0;
  rpc::IncomingPayload in;
  in.payload = std::make_shared<const proto::Payload>(*payload);
  check_integer<int8_t>(in);
  check_integer<int64_t>(in);
  check_container<std::string>(in, size);
  check_container<std::vector<int64_t>>(in, size);
  check_container<Nested>(in, size);
  return 0;
}
