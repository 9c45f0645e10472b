#include "gradwire/tests/device/ipc_travel.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device_calls/device_kind.h"

// The tests on the test accelerator, all of whose kernels run late at random.
namespace gradwire::device_kind {

c10::DeviceType type() { return c10::DeviceType::PrivateUse1; }
c10::Device device(int index) { return lag::device(index); }
c10::Stream new_stream(int index) { return lag::new_stream(index); }
void begin(uint64_t seed) { lag::set_lag(lag::Profile::seeded(seed)); }
void delay(c10::Device /*device*/) {}
uint64_t host_waits() { return static_cast<uint64_t>(lag::counts().host_waits); }
std::string leftovers() { return lag::leftovers(); }
std::shared_ptr<void> expect_ipc(const rpc::testing::Group& group, int64_t at_least) {
  return std::make_shared<lag::IpcTravel>(group, lag::IpcTravel::all_devices(), at_least);
}

struct Hold::State {
  lag::StreamHold hold;
};
Hold::Hold(const c10::Stream& stream) : state_(new State{lag::StreamHold(stream)}) {}
Hold::~Hold() = default;

}  // namespace gradwire::device_kind
