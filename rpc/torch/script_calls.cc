#include "gradwire/rpc/torch/script_calls.h"

#include <ATen/core/function.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/rref_interface.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/frontend/sugared_value.h>
#include <torch/csrc/jit/runtime/custom_operator.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/codec/torch/ivalue_codec.h"
#include "gradwire/codec/torch/ivalue_type.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/calls/op.h"
#include "gradwire/rpc/torch/torch_call.h"

namespace gradwire::rpc {
namespace {

using torch::jit::Node;
using torch::jit::Operation;
using torch::jit::Stack;

// Calls visit.operator()<T>() for the type T of the value behind a reference, where TorchScript has such a
// type, else for T = c10::IValue.
template <class Visit>
auto with_type(const std::string& type, const Visit& visit) {
  if (type == value_type_name<at::Tensor>()) return visit.template operator()<at::Tensor>();
  if (type == value_type_name<int64_t>()) return visit.template operator()<int64_t>();
  if (type == value_type_name<double>()) return visit.template operator()<double>();
  if (type == value_type_name<bool>()) return visit.template operator()<bool>();
  if (type == value_type_name<std::string>()) return visit.template operator()<std::string>();
  if (type == value_type_name<std::vector<at::Tensor>>())
    return visit.template operator()<std::vector<at::Tensor>>();
  return visit.template operator()<c10::IValue>();
}

template <class T>
c10::TypePtr script_type() {
  if constexpr (std::is_same_v<T, c10::IValue>) {
    return c10::AnyType::get();
  } else {
    return c10::getTypePtr<T>();
  }
}

// A reference in an IValue.
class ScriptRRef final : public c10::RRefInterface {
 public:
  // `type`: the element type that TorchScript sees.
  ScriptRRef(std::shared_ptr<RRefHandle> handle, c10::TypePtr type)
      : handle_(std::move(handle)), type_(std::move(type)) {}

  c10::worker_id_t owner() const override { return static_cast<c10::worker_id_t>(handle_->owner().id); }
  std::string ownerName() const override { return handle_->owner().name; }
  bool isOwner() const override { return handle_->is_owner(); }
  bool confirmedByOwner() const override {
    return handle_->confirmed().done() && handle_->confirmed().result().ok();
  }
  const c10::TypePtr type() const override { return type_; }

  const std::shared_ptr<RRefHandle>& handle() const { return handle_; }

 private:
  const std::shared_ptr<RRefHandle> handle_;
  const c10::TypePtr type_;
};

c10::IValue to_ivalue(std::shared_ptr<RRefHandle> handle, c10::TypePtr type) {
  return c10::IValue(c10::static_intrusive_pointer_cast<c10::RRefInterface>(
      c10::make_intrusive<ScriptRRef>(std::move(handle), std::move(type))));
}

absl::StatusOr<c10::IValue> value_of(std::shared_ptr<RRefHandle> handle) {
  const c10::TypePtr type = with_type(handle->type(), []<class T>() { return script_type<T>(); });
  return to_ivalue(std::move(handle), type);
}

absl::StatusOr<c10::intrusive_ptr<ScriptRRef>> script_rref(const c10::IValue& value) {
  auto reference = c10::dynamic_intrusive_pointer_cast<ScriptRRef>(value.toRRef());
  if (reference == nullptr) {
    return absl::InvalidArgumentError(
        "an RRef of another library cannot be used: expected one that this library has made");
  }
  return reference;
}

absl::StatusOr<std::shared_ptr<RRefHandle>> handle_of(const c10::IValue& value) {
  GRADWIRE_ASSIGN_OR_RETURN(auto reference, script_rref(value));
  return reference->handle();
}

// TorchScript does not check the types of values again, so a value of another worker must have the type that
// the compiler has assumed.
c10::IValue checked(c10::IValue value, const c10::Type& type, const std::string& what) {
  if (is_element(value, type)) return value;
  throw Error(absl::InvalidArgumentError(
      absl::StrCat(what, " has a value of type ", value.tagKind(), ", expected ", type.repr_str())));
}

// ---- Operators on references.

void to_here(Stack& stack) {
  const double seconds = torch::jit::pop(stack).toDouble();
  const auto reference = value_or_throw(script_rref(torch::jit::pop(stack)));
  c10::IValue value = with_type(reference->handle()->type(), [&]<class T>() {
    RRef<T> rref(reference->handle());
    // As in torch.distributed.rpc: negative means the default, 0 no limit.
    if (seconds >= 0)
      rref = rref.with_timeout(seconds == 0 ? absl::InfiniteDuration() : absl::Seconds(seconds));
    return c10::IValue(rref.to_here());
  });
  torch::jit::push(stack, checked(std::move(value), *reference->type(), "to_here"));
}

void local_value(Stack& stack) {
  const auto reference = value_or_throw(script_rref(torch::jit::pop(stack)));
  c10::IValue value = with_type(reference->handle()->type(), [&]<class T>() {
    return c10::IValue(RRef<T>(reference->handle()).local_value());
  });
  torch::jit::push(stack, checked(std::move(value), *reference->type(), "local_value"));
}

// ---- Calls from scripts.

// The operands of an rpc operator: the worker, the function's name and, optionally, a tuple of arguments, a
// dictionary of keyword arguments, and a timeout in seconds.
struct Operands {
  Destination to;
  std::string function;
  std::vector<c10::IValue> positional;
  std::optional<c10::IValue> keywords;
};

Operands pop_operands(Stack& stack, std::size_t count) {
  std::vector<c10::IValue> given = torch::jit::pop(stack, count);
  const c10::IValue& worker = given.at(0);
  if (!worker.isString() && !worker.isInt()) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("the worker of a call in a script must be its name or its id, got ", worker.tagKind())));
  }
  Operands operands{worker.isString() ? Destination(worker.toStringRef())
                                      : Destination(static_cast<int32_t>(worker.toInt())),
                    given.at(1).toStringRef(),
                    {},
                    {}};
  if (count > 2) operands.positional = given[2].toTupleRef().elements().vec();
  if (count > 3) operands.keywords = given[3];
  if (count > 4) {
    const double seconds = given[4].isInt() ? static_cast<double>(given[4].toInt()) : given[4].toDouble();
    if (seconds == 0) operands.to = operands.to.with_timeout(absl::InfiniteDuration());
    if (seconds > 0) operands.to = operands.to.with_timeout(absl::Seconds(seconds));
  }
  return operands;
}

struct ScriptCall : OutgoingCall {
  ScriptCall(Caller& caller, const Operands& operands)
      : OutgoingCall(caller, operands.to, operands.function) {
    request().set_script(operands.function);
    if (!status().ok()) return;
    proto::Payload& payload = *request().mutable_arguments();
    for (const c10::IValue& value : operands.positional) {
      set_status(Codec<c10::IValue>::encode(value, encoder(), *payload.add_values()));
    }
    if (!operands.keywords) return;
    for (const auto& entry : operands.keywords->toGenericDict()) {
      proto::KeywordValue& keyword = *payload.add_keywords();
      keyword.set_name(entry.key().toStringRef());
      set_status(Codec<c10::IValue>::encode(entry.value(), encoder(), *keyword.mutable_value()));
    }
  }
};

Operation rpc_sync_of(const Node* node) {
  return [count = node->inputs().size(), type = node->output()->type()](Stack& stack) {
    const Operands operands = pop_operands(stack, count);
    const std::shared_ptr<Agent> agent = Agent::current();
    ScriptCall call(agent->caller(), operands);
    torch::jit::push(
        stack, checked(call_internal::wait_borrowed<c10::IValue>(agent, call), *type, operands.function));
  };
}

Operation rpc_async_of(const Node* node) {
  return [count = node->inputs().size(),
          type = node->output()->type()->expectRef<c10::FutureType>().getElementType()](Stack& stack) {
    const Operands operands = pop_operands(stack, count);
    const std::shared_ptr<Agent> agent = Agent::current();
    ScriptCall call(agent->caller(), operands);
    auto future = c10::make_intrusive<c10::ivalue::Future>(type);
    // Completing it may go on with a script, which is code of the user. So this runs on the executor.
    call_internal::start<c10::IValue>(agent, call)
        .on_ready([future, type, name = operands.function](const absl::StatusOr<c10::IValue>& result) {
          try {
            future->markCompleted(checked(value_or_throw(result), *type, name));
          } catch (...) {
            future->setErrorIfNeeded(std::current_exception());
          }
        });
    torch::jit::push(stack, c10::IValue(std::move(future)));
  };
}

// The name, in references, of the C++ type in which a result of this type stays at its worker.
const std::string& stored_type(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return value_type_name<at::Tensor>();
    case c10::TypeKind::IntType:
      return value_type_name<int64_t>();
    case c10::TypeKind::FloatType:
      return value_type_name<double>();
    case c10::TypeKind::BoolType:
      return value_type_name<bool>();
    case c10::TypeKind::StringType:
      return value_type_name<std::string>();
    default:
      return value_type_name<c10::IValue>();
  }
}

Operation rpc_remote_of(const Node* node) {
  return [count = node->inputs().size(),
          type = node->output()->type()->expectRef<c10::RRefType>().getElementType()](Stack& stack) {
    const Operands operands = pop_operands(stack, count);
    const std::shared_ptr<Agent> agent = Agent::current();
    ScriptCall call(agent->caller(), operands);
    torch::jit::push(stack,
                     to_ivalue(call_internal::send_remote(agent, call, stored_type(*type), nullptr), type));
  };
}

// ---- The name `rpc` in scripts.

class RpcNames final : public torch::jit::SugaredValue {
 public:
  std::string kind() const override { return "module of remote calls"; }
  std::shared_ptr<SugaredValue> attr(const torch::jit::SourceRange& place, torch::jit::GraphFunction&,
                                     const std::string& field) override {
    using torch::jit::SpecialFormValue;
    if (field == "rpc_sync") return SpecialFormValue::create(c10::prim::rpc_sync);
    if (field == "rpc_async") return SpecialFormValue::create(c10::prim::rpc_async);
    if (field == "remote") return SpecialFormValue::create(c10::prim::rpc_remote);
    throw torch::jit::ErrorReport(place)
        << "unknown name: got rpc." << field << ", expected rpc.rpc_sync, rpc.rpc_async or rpc.remote";
  }
};

class Names final : public torch::jit::NativeResolver {
 public:
  std::shared_ptr<torch::jit::SugaredValue> resolveValue(const std::string& name,
                                                         torch::jit::GraphFunction& function,
                                                         const torch::jit::SourceRange& place) override {
    if (name == "rpc") return std::make_shared<RpcNames>();
    return NativeResolver::resolveValue(name, function, place);
  }
};

void register_all() {
  set_ivalue_references({&handle_of, &value_of});
  using torch::jit::Operator;
  constexpr auto kFromSchema = c10::AliasAnalysisKind::FROM_SCHEMA;
  constexpr auto kSpecial = c10::AliasAnalysisKind::INTERNAL_SPECIAL_CASE;
  const auto of_reference = [](const char* schema, auto read) {
    return Operator(
        schema,
        [read](Stack& stack) {
          const c10::intrusive_ptr<c10::RRefInterface> reference = torch::jit::pop(stack).toRRef();
          torch::jit::push(stack, read(*reference));
        },
        kFromSchema);
  };
  torch::jit::RegisterOperators({
      Operator("aten::to_here(RRef(t) self, float timeout=-1.0) -> t(*)", &to_here, kFromSchema),
      Operator("aten::local_value(RRef(t) self) -> t(*)", &local_value, kFromSchema),
      of_reference("aten::is_owner(RRef(t) self) -> bool",
                   [](const c10::RRefInterface& reference) { return reference.isOwner(); }),
      of_reference("aten::owner_name(RRef(t) self) -> str",
                   [](const c10::RRefInterface& reference) { return reference.ownerName(); }),
      of_reference("aten::confirmed_by_owner(RRef(t) self) -> bool",
                   [](const c10::RRefInterface& reference) { return reference.confirmedByOwner(); }),
      Operator(c10::prim::rpc_sync, &rpc_sync_of, kSpecial),
      Operator(c10::prim::rpc_async, &rpc_async_of, kSpecial),
      Operator(c10::prim::rpc_remote, &rpc_remote_of, kSpecial),
  });
}

[[maybe_unused]] const bool registered = [] {
  register_all();
  return true;
}();

// Ends the call with what the script has left in `future`.
void finish(const std::shared_ptr<ServerCall>& call, c10::ivalue::Future& future) {
  if (future.hasError()) {
    call->fail(with_context(status_from_exception(future.exception_ptr()),
                            absl::StrCat("\"", call->callee(), "\"")));
    return;
  }
  std::vector<c10::IValue> results;
  results.push_back(future.value());
  finish_torch_call(*call, std::move(results));
}

}  // namespace

std::shared_ptr<torch::jit::Resolver> script_calls_resolver() { return std::make_shared<Names>(); }

// The interpreter stops where a script waits for a future that is not complete, and goes on in a task that it
// passes to `go_on` when the future is. The task must run in the state of the handler, whose agent it needs.
void run_script(const std::shared_ptr<ServerCall>& call, torch::jit::Function& function,
                std::vector<c10::IValue> stack) {
  call->finish_later();
  const auto go_on = [executor = call->executor(),
                      state = ExecutionState::capture()](std::function<void()> task) {
    executor->post_or_run([state, task = std::move(task)] {
      const ScopedExecutionState scope(state);
      task();
    });
  };
  c10::intrusive_ptr<c10::ivalue::Future> future = function.runAsync(stack, go_on);
  if (future->completed()) {
    finish(call, *future);
    return;
  }
  future->addCallback([call](c10::ivalue::Future& done) {
    // The thread may be inside the interpreter. Encoding the result runs code of the user.
    call->executor()->post_or_run(
        [call, kept = c10::intrusive_ptr<c10::ivalue::Future>::reclaim_copy(&done)] { finish(call, *kept); });
  });
}

}  // namespace gradwire::rpc
