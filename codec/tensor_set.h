#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/threads/stream_fence.h"
#include "gradwire/codec/device.h"
#include "gradwire/proto/value.pb.h"

namespace gradwire::transport {
class Buffer;
}

namespace gradwire::rpc {

class DeviceSharing;
class DeviceTransfers;

// The tensors of one message, in the order of Payload.tensors. Only the tensor codec, and the layers that
// link it, know the tensor type: the agent works without libtorch.
class TensorSet {
 public:
  virtual ~TensorSet() = default;
  virtual std::size_t size() const = 0;
};

enum class TensorSharing {
  // The tensors may be modified as soon as they are encoded, so their bytes are copied, unless they were
  // moved in.
  kCapture,
  // The tensors must not be modified until the message has been sent, or captured by its connection.
  kBorrow,
};

// The devices at both ends of an outgoing message. What it refers to must outlive the call that gets it.
struct DeviceRoute {
  // The receiver's device for each of the sender's. nullptr: the device of the same name.
  const DeviceMap* map = nullptr;
  // One device for each tensor of the message, instead of the map: for gradients, which go back to where
  // their tensors came from. Empty: the map decides.
  std::vector<Device> destinations;
  // The receiver, and its devices (without the CPU); nullptr if it is lost, and they are not known any more.
  absl::string_view receiver;
  std::shared_ptr<const std::vector<Device>> receiver_devices;
  // Incarnations of both workers.
  uint64_t from = 0;
  uint64_t to = 0;
  // The message is an answer: `map` is the inverse of the caller's map.
  bool is_answer = false;
  // The message may be sent several times, or later than the tensors exist. So its tensors become bytes.
  bool as_bytes = false;
  // Whether tensors may be handed over to an agent of this process.
  bool local = true;
  // Not nullptr if the receiver may read memory of devices of this process.
  DeviceTransfers* transfers = nullptr;

  // The device on which a tensor on `device` arrives. InvalidArgument, with both maps or lists, without one.
  absl::StatusOr<Device> destination(const Device& device, std::size_t tensor) const;

 private:
  // For errors: the map as the caller gave it, and its inverse.
  std::string callers_map() const;
};

// The devices of a received payload's tensors at their sender; empty if all were on the CPU. Malformed names
// count as the CPU.
std::vector<Device> sender_devices(const proto::Payload& payload);

// The devices at the receiver of a message, and between which workers it was sent.
struct DeviceArrival {
  // This worker's devices (without the CPU). A tensor for any other device is refused.
  const std::vector<Device>* devices = nullptr;
  uint64_t from = 0;
  uint64_t to = 0;
  // nullptr if this worker does not read memory of other processes.
  DeviceTransfers* transfers = nullptr;
};

struct EncodedTensors;

// Streams of an accelerator that were made current on this thread. The destructor makes the previous ones
// current.
class StreamScope {
 public:
  virtual ~StreamScope() = default;
};

// One stream for each device, on which all handlers of an agent run. So the device does their work in the
// order in which they enqueue it, whatever orders them on the host: that one ends before the other begins, or
// a mutex. And the memory that one has left behind can be used and freed by another. Thread-safe.
class HandlerStreams {
 public:
  virtual ~HandlerStreams() = default;
  // Makes the streams current on this thread, for the devices that the process uses. Work that is handed to
  // other threads takes them along.
  virtual std::unique_ptr<StreamScope> enter() = 0;
  // Whether each tensor on a device has one of the current streams of enter(). Not so if the process did not
  // use the device at that time. Call enter() again then.
  virtual bool cover(const TensorSet& tensors) const = 0;
};

// Converts tensors to bytes and back. //codec/torch installs it once per process. Thread-safe.
class TensorBackend {
 public:
  virtual ~TensorBackend() = default;

  // Appends a description of each tensor to payload.tensors and the bytes of the large ones to `out.buffers`.
  // `route` says to which devices the tensors go; nullptr: all must be on the CPU. InvalidArgument, with the
  // reason, for a tensor that cannot be sent.
  virtual absl::Status encode(const TensorSet& tensors, TensorSharing sharing, const DeviceRoute* route,
                              proto::Payload& payload, EncodedTensors& out) = 0;
  // As above, for tensors on the CPU.
  absl::Status encode(const TensorSet& tensors, TensorSharing sharing, proto::Payload& payload,
                      std::vector<transport::Buffer>& buffers);

  // Returns tensors with the same content, which nobody else can change, so that they can be encoded a second
  // time later. nullptr if all are on the CPU: the buffers that encode() makes of them can be sent again.
  // Throws what libtorch throws, if a device is lost or out of memory.
  virtual std::unique_ptr<TensorSet> keep(const TensorSet& tensors) = 0;

  // Returns the tensors of a payload. Their memory is that of `buffers`, or newly allocated. The content of
  // `payload` is untrusted. Tensors on a device may be used on the current streams of this thread. `arrival`:
  // this worker's devices; nullptr: none. InvalidArgument names the index of the tensor and the reason.
  virtual absl::StatusOr<std::unique_ptr<TensorSet>> decode(const proto::Payload& payload,
                                                            std::vector<transport::Buffer> buffers,
                                                            const DeviceArrival* arrival) = 0;
  // As above, without devices.
  absl::StatusOr<std::unique_ptr<TensorSet>> decode(const proto::Payload& payload,
                                                    std::vector<transport::Buffer> buffers);

  // A message with Payload.transfer has arrived. When the result is destroyed, and
  // decode() has not taken the tensors, they are dropped.
  virtual std::shared_ptr<void> arrived(const proto::Payload& payload, const DeviceArrival& arrival) = 0;

  // The devices of the accelerator of this process; empty without one. The first call with a result prepares
  // the process for work on devices.
  virtual std::vector<Device> accelerators() = 0;
  // Makes streams of libtorch's pool current on this thread, one for each device that the process uses: for
  // copies. Work that is handed to other threads takes them along (base/threads/execution_state.h).
  virtual std::unique_ptr<StreamScope> enter_pool_streams() = 0;
  // Returns streams for all handlers of one agent.
  virtual std::shared_ptr<HandlerStreams> make_handler_streams() = 0;
  // Records a fence after which the tensors may be used, on the current streams of this thread. It also makes
  // the memory of the tensors known to the streams that wait for it. nullptr if all are on the CPU.
  virtual StreamFencePtr record_fence(const TensorSet& tensors) = 0;
  // Records that this agent runs in this process, until the result is destroyed. Tensors on devices are
  // handed over to it without being copied to the host.
  virtual std::shared_ptr<void> register_agent(uint64_t incarnation) = 0;
  // Shares these devices of an agent with other processes. nullptr if no kind of device can do that in this
  // program.
  virtual std::unique_ptr<DeviceSharing> share_devices(std::vector<Device> devices) = 0;
};

// Must be called during static initialisation.
void install_tensor_backend(TensorBackend* backend);
// Returns nullptr if the program was linked without libtorch.
TensorBackend* tensor_backend();

}  // namespace gradwire::rpc
