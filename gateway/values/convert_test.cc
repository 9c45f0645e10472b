#include "gradwire/gateway/values/convert.h"

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/gateway/values/utf8.h"
#include "gtest/gtest.h"

namespace gradwire::gateway {
namespace {

struct Sink : ArgumentSink {
  absl::StatusOr<uint32_t> add_tensor(v1::Tensor& tensor) override {
    tensors.push_back(tensor);
    return static_cast<uint32_t>(tensors.size() - 1);
  }
  absl::StatusOr<uint32_t> add_handle(const std::string& id, const std::string& type) override {
    handles.push_back(id + "/" + type);
    return static_cast<uint32_t>(handles.size() - 1);
  }
  std::vector<v1::Tensor> tensors;
  std::vector<std::string> handles;
};

struct Source : ResultSource {
  absl::Status take_tensor(uint32_t index, v1::Tensor& out) override {
    if (index > 0) return absl::InvalidArgumentError("out of range");
    out.set_dtype(v1::DTYPE_INT8);
    return absl::OkStatus();
  }
  absl::Status take_reference(uint32_t index, v1::Handle& out) override {
    out.set_id(absl::StrCat("handle", index));
    return absl::OkStatus();
  }
};

v1::Value integer(int64_t n) {
  v1::Value value;
  value.set_integer(n);
  return value;
}
v1::Value unsigned_integer(uint64_t n) {
  v1::Value value;
  value.set_unsigned_integer(n);
  return value;
}
v1::Value real(double x) {
  v1::Value value;
  value.set_real(x);
  return value;
}
v1::Value none() {
  v1::Value value;
  value.mutable_none();
  return value;
}
v1::Value list(std::vector<v1::Value> values) {
  v1::Value value;
  value.mutable_list();
  for (const v1::Value& each : values) *value.mutable_list()->add_values() = each;
  return value;
}

struct Written {
  absl::Status status;
  proto::Value value;
  Mismatch mismatch;
  Sink sink;
};
Written write(v1::Value value, const std::string& type) {
  Written written;
  written.status = to_wire(value, *parse_type(type), written.sink, written.value, written.mismatch);
  return written;
}
v1::Value read(const proto::Value& value, const std::string& type) {
  Source source;
  v1::Value out;
  const absl::Status status = from_wire(value, *parse_type(type), source, out);
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

// Converts the value to the wire and back, with the type of a parameter that is also the result.
v1::Value there_and_back(const v1::Value& value, const std::string& type) {
  const Written written = write(value, type);
  EXPECT_TRUE(written.status.ok()) << written.status;
  return read(written.value, type);
}

TEST(GatewayConvert, IntegersMustFitTheParameter) {
  EXPECT_EQ(write(integer(-128), "int8").value.integer(), -128);
  EXPECT_FALSE(write(integer(128), "int8").status.ok());
  EXPECT_FALSE(write(integer(-1), "uint8").status.ok());
  EXPECT_EQ(write(integer(255), "uint8").value.integer(), 255);
  EXPECT_FALSE(write(integer(-1), "uint64").status.ok());
  EXPECT_FALSE(write(unsigned_integer(~uint64_t{0}), "int64").status.ok());
  EXPECT_EQ(there_and_back(unsigned_integer(~uint64_t{0}), "uint64").unsigned_integer(), ~uint64_t{0});
  EXPECT_EQ(there_and_back(unsigned_integer(7), "int64").integer(), 7);
}

TEST(GatewayConvert, AnIntegerIsARealOnlyIfItIsExact) {
  EXPECT_EQ(write(integer(2), "float64").value.real(), 2.0);
  EXPECT_TRUE(write(integer(int64_t{1} << 53), "float64").status.ok());
  EXPECT_FALSE(write(integer((int64_t{1} << 53) + 1), "float64").status.ok());
  EXPECT_FALSE(write(integer(std::numeric_limits<int64_t>::max()), "float64").status.ok());
  EXPECT_TRUE(write(integer(std::numeric_limits<int64_t>::min()), "float64").status.ok());
  EXPECT_FALSE(write(integer((1 << 24) + 1), "float32").status.ok());
  EXPECT_TRUE(write(integer((1 << 24) + 2), "float32").status.ok());
  EXPECT_FALSE(write(real(2.0), "int64").status.ok());
  EXPECT_EQ(write(integer(3), "complex128").value.complex().real(), 3.0);
}

TEST(GatewayConvert, AMismatchNamesBothTypes) {
  const Written written = write(list({integer(1), real(0.5)}), "list[int64]");
  EXPECT_EQ(written.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(written.mismatch.wanted, "int64");
  EXPECT_EQ(written.mismatch.got, "real");
  EXPECT_EQ(write(v1::Value(), "str").mismatch.got, "nothing");
  EXPECT_EQ(write(none(), "Tensor").mismatch.wanted, "Tensor");
}

TEST(GatewayConvert, ListsHaveTheFormOfTheirCodec) {
  EXPECT_EQ(write(list({integer(1), integer(2)}), "list[int32]").value.integers().values_size(), 2);
  EXPECT_EQ(write(list({integer(1)}), "list[float64]").value.reals().values(0), 1.0);
  EXPECT_EQ(write(list({integer(1)}), "list[enum[int32]]").value.list().values_size(), 1);
  v1::Value packed;
  packed.mutable_integers()->add_values(4);
  EXPECT_EQ(write(packed, "list[float32]").value.reals().values(0), 4.0);
  EXPECT_EQ(write(packed, "list[optional[int64]]").value.list().values(0).list().values(0).integer(), 4);
  EXPECT_EQ(write(list({}), "list[int64]").value.kind_case(), proto::Value::kIntegers);
}

TEST(GatewayConvert, OptionalsTuplesAndMapsKeepTheirValues) {
  EXPECT_EQ(write(none(), "optional[int64]").value.list().values_size(), 0);
  EXPECT_TRUE(there_and_back(none(), "optional[int64]").has_none());
  EXPECT_EQ(there_and_back(integer(5), "optional[int64]").integer(), 5);
  const v1::Value tuple = there_and_back(list({integer(1), real(0.5)}), "tuple[int64,float64]");
  ASSERT_EQ(tuple.tuple().values_size(), 2);
  EXPECT_FALSE(write(list({integer(1)}), "tuple[int64,float64]").status.ok());
  v1::Value map;
  map.mutable_map()->add_keys()->set_text("a");
  *map.mutable_map()->add_values() = integer(1);
  EXPECT_EQ(there_and_back(map, "map[str,int64]").map().values(0).integer(), 1);
  map.mutable_map()->add_keys()->set_text("b");
  EXPECT_FALSE(write(map, "map[str,int64]").status.ok());
}

TEST(GatewayConvert, TextThatIsNotUtf8ComesBackAsData) {
  v1::Value value;
  value.set_data("\xff\xfe");
  EXPECT_EQ(there_and_back(value, "str").data(), "\xff\xfe");
  value.set_data("gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(there_and_back(value, "str").text(), "gr\xc3\xbc\xc3\x9f");
  EXPECT_FALSE(is_utf8("\xc0\x80"));
  EXPECT_FALSE(is_utf8("\xed\xa0\x80"));
  EXPECT_FALSE(is_utf8("\xf4\x90\x80\x80"));
  EXPECT_FALSE(is_utf8("\xe2\x82"));
  EXPECT_EQ(printable("a\xff"
                      "b"),
            "a?b");
}

TEST(GatewayConvert, HandlesAreCheckedAgainstTheTypeOfTheReference) {
  v1::Value handle;
  handle.mutable_handle()->set_id("h");
  EXPECT_EQ(write(handle, "RRef[Tensor]").sink.handles, std::vector<std::string>{"h/Tensor"});
  EXPECT_FALSE(write(handle, "IValue").status.ok());
  EXPECT_FALSE(write(integer(1), "RRef[Tensor]").status.ok());
  proto::Value reference;
  reference.set_reference(0);
  EXPECT_EQ(read(reference, "RRef[Tensor]").handle().id(), "handle0");
}

TEST(GatewayConvert, DeepValuesAreRefusedWithoutOverflowingTheStack) {
  v1::Value deep = integer(1);
  for (int i = 0; i < 40; ++i) deep = list({deep});
  EXPECT_FALSE(write(deep, "IValue").status.ok());
  proto::Value wire;
  proto::Value* at = &wire;
  for (int i = 0; i < 40; ++i) at = at->mutable_list()->add_values();
  at->set_integer(1);
  Source source;
  v1::Value out;
  EXPECT_FALSE(from_wire(wire, any_type(), source, out).ok());
}

TEST(GatewayConvert, UnsignedListsKeepLargeNumbers) {
  const std::vector<v1::Value> numbers = {unsigned_integer(~uint64_t{0}), integer(1)};
  const v1::Value back = there_and_back(list(numbers), "list[uint64]");
  ASSERT_EQ(back.list().values_size(), 2);
  EXPECT_EQ(back.list().values(0).unsigned_integer(), ~uint64_t{0});
  EXPECT_EQ(back.list().values(1).integer(), 1);
}

TEST(GatewayConvert, TensorsAndMessagesPass) {
  v1::Value tensor;
  tensor.mutable_tensor()->set_dtype(v1::DTYPE_FLOAT32);
  EXPECT_EQ(write(tensor, "Tensor").value.kind_case(), proto::Value::kTensor);
  EXPECT_EQ(read(write(tensor, "Tensor").value, "Tensor").tensor().dtype(), v1::DTYPE_INT8);
  v1::Value message;
  message.mutable_message()->set_type("a.B");
  message.mutable_message()->set_serialized("xyz");
  EXPECT_EQ(there_and_back(message, "message[a.B]").message().serialized(), "xyz");
  EXPECT_FALSE(write(message, "message[a.C]").status.ok());
  proto::Value wire;
  wire.set_tensor(3);
  Source source;
  v1::Value out;
  EXPECT_FALSE(from_wire(wire, *parse_type("Tensor"), source, out).ok());
}

}  // namespace
}  // namespace gradwire::gateway
