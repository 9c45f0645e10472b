#include "gradwire/tests/device_ipc/functions.h"

#include <ATen/ATen.h>
#include <signal.h>
#include <unistd.h>

#include "gradwire/base/mutex.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device/lag_ipc.h"

namespace gradwire::rpc::ipc_test {
namespace {

Mutex& mutex() {
  static auto* const mutex = new Mutex;
  return *mutex;
}
// Guarded by mutex().
at::Tensor& slot() {
  static auto* const slot = new at::Tensor;
  return *slot;
}

struct Gate {
  Mutex mutex;
  CondVar changed;
  int open ABSL_GUARDED_BY(mutex) = 0;
  int inside ABSL_GUARDED_BY(mutex) = 0;
};
Gate& gate() {
  static auto* const gate = new Gate;
  return *gate;
}

}  // namespace

at::Tensor echo(const at::Tensor& x) { return x; }
GRADWIRE_RPC(echo)

at::Tensor scale(const at::Tensor& x, double by) { return x * by; }
GRADWIRE_RPC(scale)

std::string device_of(const at::Tensor& x) { return x.device().str(); }
GRADWIRE_RPC(device_of)

void keep(const at::Tensor& x) {
  MutexLock lock(mutex());
  slot() = x;
}
GRADWIRE_RPC(keep)

at::Tensor kept() {
  MutexLock lock(mutex());
  return std::exchange(slot(), at::Tensor());
}
GRADWIRE_RPC(kept)

void stay() {
  MutexLock lock(gate().mutex);
  ++gate().inside;
  gate().changed.notify_all();
  while (gate().open == 0) gate().changed.wait(gate().mutex);
  --gate().open;
  --gate().inside;
}
GRADWIRE_RPC(stay)

void go_on() {
  MutexLock lock(gate().mutex);
  ++gate().open;
  gate().changed.notify_all();
}
GRADWIRE_RPC(go_on)

void wait_for_stay() {
  MutexLock lock(gate().mutex);
  while (gate().inside == 0) gate().changed.wait(gate().mutex);
}

void die(const at::Tensor&) { ::kill(::getpid(), SIGKILL); }
GRADWIRE_RPC(die)

int64_t opened() {
  const lag::IpcCounts counts = lag::ipc_counts();
  return counts.opened_events + counts.opened_memories;
}
GRADWIRE_RPC(opened)

}  // namespace gradwire::rpc::ipc_test
