#include "gradwire/codec/codec.h"

#include <complex>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/codec_test_util.h"
#include "gradwire/proto/value.pb.h"
#include "gtest/gtest.h"

namespace gradwire::rpc {

struct Point {
  double x;
  double y;
};

template <>
struct Codec<Point> {
  static std::string type_name() { return "Point"; }
  static absl::Status encode(const Point& point, Encoder& encoder, proto::Value& out) {
    return encode_value<std::pair<double, double>>(std::make_pair(point.x, point.y), encoder, out);
  }
  static absl::StatusOr<Point> decode(const proto::Value& in, Decoder& decoder) {
    GRADWIRE_ASSIGN_OR_RETURN(auto xy, (decode_value<std::pair<double, double>>(in, decoder)));
    return Point{xy.first, xy.second};
  }
};

namespace {

enum class Colour : uint8_t { kRed = 1, kBlue = 200 };

template <class T>
void expect_round_trip(const T& value) {
  const auto got = round_trip<T>(value);
  ASSERT_TRUE(got.ok()) << Codec<T>::type_name() << ": " << got.status();
  EXPECT_EQ(*got, value) << Codec<T>::type_name();
}

TEST(Codec, NumbersRoundTrip) {
  expect_round_trip(true);
  expect_round_trip(int8_t{-128});
  expect_round_trip(std::numeric_limits<int64_t>::min());
  expect_round_trip(std::numeric_limits<uint64_t>::max());
  expect_round_trip(1.5f);
  expect_round_trip(std::numeric_limits<double>::infinity());
  expect_round_trip(Colour::kBlue);
  expect_round_trip(std::complex<double>(1, -2));
}

TEST(Codec, TextNeedNotBeUtf8) {
  expect_round_trip(std::string());
  expect_round_trip(std::string("\xff\0x", 3));
}

TEST(Codec, ContainersRoundTrip) {
  expect_round_trip(std::vector<int32_t>{1, -2, 3});
  expect_round_trip(std::vector<double>{});
  expect_round_trip(std::vector<bool>{true, false});
  expect_round_trip(std::vector<std::vector<std::string>>{{"a"}, {}, {"b", "c"}});
  expect_round_trip(std::make_pair(std::string("a"), 1));
  expect_round_trip(std::make_tuple(1, std::string("b"), 2.5, std::vector<int>{7}));
  expect_round_trip(std::tuple<>());
  expect_round_trip(std::map<std::string, std::vector<double>>{{"a", {1, 2}}, {"b", {}}});
  expect_round_trip(std::unordered_map<int, std::string>{{1, "x"}, {2, "y"}});
  expect_round_trip(std::monostate());
}

TEST(Codec, OptionalOfOptionalStaysUnambiguous) {
  using Twice = std::optional<std::optional<int>>;
  expect_round_trip(std::optional<int>());
  expect_round_trip(std::optional<int>(3));
  expect_round_trip(Twice());
  expect_round_trip(Twice(std::optional<int>()));
  expect_round_trip(Twice(std::optional<int>(3)));
  expect_round_trip(std::optional<std::vector<int>>(std::vector<int>{}));
}

TEST(Codec, UserTypesNest) {
  const auto got = round_trip<std::vector<Point>>(std::vector<Point>{{1, 2}, {3, 4}});
  ASSERT_TRUE(got.ok());
  EXPECT_EQ((*got)[1].y, 4);
  EXPECT_EQ(Codec<std::vector<Point>>::type_name(), "list[Point]");
}

TEST(Codec, ValueNestedTooDeepRefusedAtBothEnds) {
  EXPECT_TRUE(round_trip<Chain>(Chain::of(kMaxNesting)).ok());
  const absl::Status encoded = round_trip<Chain>(Chain::of(kMaxNesting + 1)).status();
  EXPECT_EQ(encoded.code(), absl::StatusCode::kInvalidArgument) << encoded;

  // A sender that does not count.
  proto::Payload payload;
  proto::Value* value = payload.add_values();
  for (int i = 0; i < kMaxNesting; ++i) value = value->mutable_list()->add_values();
  value->mutable_list();
  const std::vector<std::shared_ptr<RRefHandle>> no_references;
  Decoder decoder(payload, nullptr, no_references);
  const absl::Status decoded = decode_value<Chain>(payload.values(0), decoder).status();
  EXPECT_EQ(decoded.code(), absl::StatusCode::kInvalidArgument) << decoded;
  // The count is that of the value, not of the message.
  payload.add_values()->mutable_list();
  EXPECT_TRUE(decode_value<Chain>(payload.values(1), decoder).ok());

  // Many values side by side are not deep.
  Chain wide;
  wide.rest.resize(10 * kMaxNesting);
  EXPECT_TRUE(round_trip<Chain>(wide).ok());
}

TEST(Codec, ProtobufMessagesTravelByTheirName) {
  proto::SentTensors tensors;
  tensors.set_message(9);
  EXPECT_EQ(round_trip<proto::SentTensors>(tensors)->message(), 9u);
  EXPECT_EQ((round_trip<proto::SentTensors, proto::Id>(tensors).status().code()),
            absl::StatusCode::kInvalidArgument);
}

TEST(Codec, StatusKeepsCodeMessageAndWorker) {
  const absl::Status status = with_worker(absl::NotFoundError("worker not found"), "ps");
  const auto got = round_trip<absl::Status>(status);
  EXPECT_EQ(got.status().code(), absl::StatusCode::kOk);
  EXPECT_EQ(got->code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(got->message(), "worker not found");
  EXPECT_EQ(worker_of(*got), "ps");
}

TEST(Codec, HostileStatusCodeNeverBecomesOk) {
  proto::StatusValue wire;
  for (int code : {-1, 17, 1000000}) {
    wire.set_code(code);
    EXPECT_EQ(status_from_proto(wire).code(), absl::StatusCode::kUnknown);
  }
}

TEST(Codec, WrongKindsAndRangesRefused) {
  EXPECT_FALSE((round_trip<std::string, int>(std::string("1")).ok()));
  EXPECT_FALSE((round_trip<int64_t, bool>(1).ok()));
  EXPECT_FALSE((round_trip<int64_t, int8_t>(int64_t{128}).ok()));
  EXPECT_FALSE((round_trip<int64_t, uint32_t>(int64_t{-1}).ok()));
  EXPECT_FALSE((round_trip<std::vector<int64_t>, std::vector<int8_t>>(std::vector<int64_t>{300}).ok()));
  EXPECT_FALSE((round_trip<std::pair<int, int>, std::tuple<int, int, int>>(std::make_pair(1, 2)).ok()));
  EXPECT_FALSE(
      (round_trip<std::vector<std::string>, std::map<std::string, int>>(std::vector<std::string>{"a"}).ok()));
}

TEST(Codec, TuplesAreReadFromEitherKindOfList) {
  proto::Value wire;
  wire.mutable_tuple()->add_values()->set_integer(1);
  wire.mutable_tuple()->add_values()->set_text("b");
  const proto::Payload payload;
  const std::vector<std::shared_ptr<RRefHandle>> no_references;
  Decoder decoder(payload, nullptr, no_references);
  const auto got = decode_value<std::pair<int, std::string>>(wire, decoder);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->second, "b");
}

TEST(Codec, MapWithMoreKeysThanValuesRefused) {
  proto::Value wire;
  wire.mutable_map()->add_keys()->set_integer(1);
  const proto::Payload payload;
  const std::vector<std::shared_ptr<RRefHandle>> no_references;
  Decoder decoder(payload, nullptr, no_references);
  EXPECT_FALSE((decode_value<std::map<int, int>>(wire, decoder).ok()));
}

TEST(Codec, SignatureNamesAreStable) {
  using Type = std::map<std::string, std::tuple<int64_t, float, std::optional<bool>>>;
  EXPECT_EQ(Codec<Type>::type_name(), "map[str,tuple[int64,float32,optional[bool]]]");
}

}  // namespace
}  // namespace gradwire::rpc
