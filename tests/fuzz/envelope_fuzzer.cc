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
#include "gradwire/rpc/link/envelope.h"
#include "gradwire/tests/fuzz/fuzzing.h"

namespace {

using gradwire::fuzzing::require;
namespace proto = gradwire::proto;
namespace rpc = gradwire::rpc;

using Nested = std::map<std::string, std::vector<std::pair<int64_t, std::optional<std::string>>>>;

// How many values there are in it: what is decoded may not be more than that, nor bytes than came.
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

// What is decoded as a T is no more than came, and survives another round.
template <class T>
void check_container(const rpc::IncomingPayload& in, std::size_t bytes) {
  const absl::StatusOr<T> value = rpc::decode_first<T>(in);
  if (!value.ok()) return;
  require(count(*value) <= bytes, "more was decoded than came");
  const absl::StatusOr<T> again = rpc::round_trip<T>(*value);
  require(again.ok() && *again == *value, "a decoded value does not survive a round trip");
}

// A number is the one that was sent, if the type holds it, and nothing else.
template <class T>
void check_integer(const rpc::IncomingPayload& in) {
  const absl::StatusOr<T> value = rpc::decode_first<T>(in);
  const proto::Value& sent = in.payload->values(0);
  const bool fits = sent.kind_case() == proto::Value::kInteger &&
                    sent.integer() >= std::numeric_limits<T>::min() &&
                    sent.integer() <= std::numeric_limits<T>::max();
  require(value.ok() == fits, "an integer is taken for another than it is");
  require(!fits || *value == sent.integer(), "another integer");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  rpc::EnvelopeBox envelope;
  if (!envelope->ParseFromArray(data, static_cast<int>(size))) return 0;
  const proto::Payload* payload = nullptr;
  if (envelope->has_request()) payload = &envelope->request().arguments();
  if (envelope->has_response()) payload = &envelope->response().result();
  // Tensors and references are for layers above this one.
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
