// Registers with base the parts of libtorch that base needs: its exceptions, and the grad and inference mode
// of a thread. The target is alwayslink, because no other code refers to it.
#include <ATen/DeviceAccelerator.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/device/device_transfer.h"

namespace gradwire::rpc {
namespace {

// The error says nothing about the kind of its device, but a process has one kind of accelerator.
absl::StatusCode meaning_of(const c10::AcceleratorError& error) {
  const std::optional<c10::DeviceType> type = at::accelerator::getAccelerator(false);
  device::DeviceTransfer* const transfer = type ? device::device_transfer(*type) : nullptr;
  return transfer == nullptr ? absl::StatusCode::kInternal : transfer->meaning(error.get_error_code());
}

// what() of c10's errors ends with a backtrace of this process, which is useless in other processes.
absl::Status translate(const std::exception& exception) {
  const auto* error = dynamic_cast<const c10::Error*>(&exception);
  if (error == nullptr) return absl::OkStatus();
  int failed = 0;
  std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(typeid(*error).name(), nullptr, nullptr, &failed), &std::free);
  const std::string message =
      absl::StrCat(failed == 0 ? name.get() : "c10::Error", ": ", error->what_without_backtrace());
  if (dynamic_cast<const c10::OutOfMemoryError*>(error) != nullptr)
    return absl::ResourceExhaustedError(message);
  const auto* of_device = dynamic_cast<const c10::AcceleratorError*>(error);
  if (of_device == nullptr) return absl::UnknownError(message);
  // An error that stays, such as that of a kernel which has failed: the device is lost for this process.
  const absl::StatusCode code = meaning_of(*of_device);
  return {code, code == absl::StatusCode::kInternal ? absl::StrCat("a device is lost: ", message) : message};
}

struct Modes {
  bool grad;
  bool inference;
};
// The clean state, grad enabled outside inference mode, is nullptr.
constexpr Modes kClean = {true, false};
// Static objects, so that capture() need not count references.
constexpr Modes kOthers[] = {{false, false}, {true, true}, {false, true}};

Modes current_modes() {
  const c10::AutogradState& state = c10::AutogradState::get_tls_state();
  return {state.get_grad_mode(), state.get_inference_mode()};
}

ExecutionState::Value capture() {
  const Modes now = current_modes();
  for (const Modes& other : kOthers) {
    if (now.grad == other.grad && now.inference == other.inference) {
      return ExecutionState::Value(std::shared_ptr<const void>(), &other);
    }
  }
  return nullptr;
}

// Most calls change nothing, so they compare first and return: setting the state costs more than reading
// it.
void set_modes(const ExecutionState::Value& value) {
  const Modes wanted = value == nullptr ? kClean : *static_cast<const Modes*>(value.get());
  const Modes now = current_modes();
  if (now.grad == wanted.grad && now.inference == wanted.inference) return;
  c10::AutogradState state = c10::AutogradState::get_tls_state();
  state.set_grad_mode(wanted.grad);
  if (now.inference != wanted.inference) {
    // The same steps as entering or leaving c10::InferenceMode, which is available only as a scope.
    state.set_inference_mode(wanted.inference);
    state.set_fw_grad_mode(!wanted.inference);
    state.set_multithreading_enabled(!wanted.inference);
    const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
    c10::impl::PODLocalDispatchKeySet next{};
    if (wanted.inference) {
      next.set_included(keys.included_.remove(c10::DispatchKey::ADInplaceOrView));
      next.set_excluded(keys.excluded_ | c10::autograd_dispatch_keyset);
    } else {
      next.set_included(keys.included_.add(c10::DispatchKey::ADInplaceOrView));
      next.set_excluded(keys.excluded_ - c10::autograd_dispatch_keyset);
    }
    c10::impl::_force_tls_local_dispatch_key_set(next);
  }
  c10::AutogradState::set_tls_state(state);
}

void exchange(ExecutionState::Value& value) {
  ExecutionState::Value previous = capture();
  set_modes(value);
  value = std::move(previous);
}

[[maybe_unused]] const bool runtime_installed = [] {
  set_exception_translator(&translate);
  register_execution_slot({&capture, &exchange});
  return true;
}();

}  // namespace
}  // namespace gradwire::rpc
