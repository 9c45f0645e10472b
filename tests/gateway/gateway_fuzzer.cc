// Reads the input as an argument of a client of the gateway (proto/gateway.proto). The first byte chooses the
// type of the parameter.

#include <cstdint>
#include <string>
#include <vector>

#include "gradwire/gateway/values/convert.h"
#include "gradwire/gateway/values/tensors.h"
#include "gradwire/tests/fuzz/fuzzing.h"

namespace {

using gradwire::fuzzing::require;
namespace gateway = gradwire::gateway;
namespace v1 = gateway::v1;
namespace proto = gradwire::proto;

const std::vector<gateway::Type>& types() {
  static const auto* const all = [] {
    auto* list = new std::vector<gateway::Type>;
    for (const char* name : {"bool",
                             "int8",
                             "uint32",
                             "int64",
                             "uint64",
                             "float32",
                             "float64",
                             "complex64",
                             "str",
                             "Tensor",
                             "Scalar",
                             "IValue",
                             "Status",
                             "RRef[str]",
                             "message[a.B]",
                             "list[int16]",
                             "list[uint64]",
                             "list[float32]",
                             "list[optional[str]]",
                             "tuple[int64,float64,str]",
                             "map[str,list[Tensor]]",
                             "optional[list[map[int64,bool]]]",
                             "enum[uint8]",
                             "list[enum[int32]]",
                             "void",
                             "ns::Point"}) {
      list->push_back(*gateway::parse_type(name));
    }
    return list;
  }();
  return *all;
}

// Keeps the tensors and handles of a value, and gives them back.
struct Table : gateway::ArgumentSink, gateway::ResultSource {
  absl::StatusOr<uint32_t> add_tensor(v1::Tensor& tensor) override {
    const absl::StatusOr<uint64_t> bytes = gateway::checked_bytes(tensor);
    if (!bytes.ok()) return bytes.status();
    require(tensor.chunked() || *bytes == tensor.data().size(), "a tensor of the wrong length is accepted");
    tensors.push_back(tensor);
    return static_cast<uint32_t>(tensors.size() - 1);
  }
  absl::StatusOr<uint32_t> add_handle(const std::string& id, const std::string&) override {
    handles.push_back(id);
    return static_cast<uint32_t>(handles.size() - 1);
  }
  absl::Status take_tensor(uint32_t index, v1::Tensor& out) override {
    if (index >= tensors.size()) return absl::InvalidArgumentError("index");
    out = tensors[index];
    return absl::OkStatus();
  }
  absl::Status take_reference(uint32_t index, v1::Handle& out) override {
    if (index >= handles.size()) return absl::InvalidArgumentError("index");
    out.set_id(handles[index]);
    return absl::OkStatus();
  }
  std::vector<v1::Tensor> tensors;
  std::vector<std::string> handles;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  (void)gateway::parse_signature(std::string(reinterpret_cast<const char*>(data), size));
  const gateway::Type& type = types()[data[0] % types().size()];
  v1::Value value;
  if (!value.ParseFromArray(data + 1, static_cast<int>(size - 1))) return 0;
  Table table;
  gateway::Mismatch mismatch;
  proto::Value wire;
  if (!gateway::to_wire(value, type, table, wire, mismatch).ok()) return 0;
  // An accepted value comes back, and is accepted again with the same form on the wire.
  v1::Value back;
  require(gateway::from_wire(wire, type, table, back).ok(), "an accepted value does not come back");
  proto::Value again;
  Table second;
  require(gateway::to_wire(back, type, second, again, mismatch).ok(), "a value that came back is refused");
  require(again.SerializeAsString() == wire.SerializeAsString(), "a value changes on its way back");
  return 0;
}
