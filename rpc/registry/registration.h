#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/codec/type_name.h"
#include "gradwire/rpc/registry/constructor.h"
#include "gradwire/rpc/registry/registry.h"
#include "gradwire/rpc/registry/serve.h"
#include "gradwire/rpc/registry/type_ops.h"

// Registers what other workers may call. At namespace scope, in any namespace, in a library that both
// programs link (gradwire_cc_library, or alwayslink = True). Names on the wire are fully qualified.
//
//   at::Tensor scale(const at::Tensor& x, double by);
//   GRADWIRE_RPC(scale)
//
//   // An overloaded function gets a name, and a cast that says which one is meant:
//   double norm(const at::Tensor& x);
//   double norm(const at::Tensor& x, double p);
//   GRADWIRE_RPC_AS("norm_p", static_cast<double (*)(const at::Tensor&, double)>(&norm))
//
//   // A class, with the parameter types of the constructor to be used, and its methods:
//   GRADWIRE_RPC_CLASS(ParameterServer, int64_t)
//   GRADWIRE_RPC_METHOD(ParameterServer, push)
//   // A method that the class has inherited is registered for this class, under its name. An overloaded
//   // one needs a cast:
//   GRADWIRE_RPC_METHOD(ParameterServer, method_of_base)
//   GRADWIRE_RPC_METHOD_AS(ParameterServer, "pull_one",
//                          static_cast<at::Tensor (Base::*)(int64_t) const>(&ParameterServer::pull))
//
//   // One method at a time per object, in arrival order:
//   GRADWIRE_RPC_SERIAL_CLASS(Counter)
//
//   // Running it twice does no more than running it once: its calls survive a broken connection
//   // (rpc/core/options.h), at the price that large arguments and results are copied unless they are
//   // given away:
//   GRADWIRE_RPC_IDEMPOTENT(scale)
//   GRADWIRE_RPC_IDEMPOTENT_AS("norm_p", static_cast<double (*)(const at::Tensor&, double)>(&norm))
//   GRADWIRE_RPC_IDEMPOTENT_METHOD(ParameterServer, pull)
#define GRADWIRE_RPC(function) \
  GRADWIRE_RPC_REGISTER_(      \
      (::gradwire::rpc::registration_internal::overloads_need_GRADWIRE_RPC_AS<&function>()))
// Registers an overloaded function or method: `function` is a cast of its address, `name` its name on the
// wire.
#define GRADWIRE_RPC_AS(name, function) \
  GRADWIRE_RPC_REGISTER_((::gradwire::rpc::registration_internal::function_entry<function>(name)))
// As GRADWIRE_RPC, and says that running the function twice does no more than running it once.
#define GRADWIRE_RPC_IDEMPOTENT(function) \
  GRADWIRE_RPC_REGISTER_(                 \
      (::gradwire::rpc::registration_internal::overloads_need_GRADWIRE_RPC_IDEMPOTENT_AS<&function>()))
// As GRADWIRE_RPC_AS, and says that running the function twice does no more than running it once.
#define GRADWIRE_RPC_IDEMPOTENT_AS(name, function) \
  GRADWIRE_RPC_REGISTER_((::gradwire::rpc::registration_internal::idempotent_entry<function>(name)))
// As GRADWIRE_RPC_METHOD, and says that running the method twice does no more than running it once.
#define GRADWIRE_RPC_IDEMPOTENT_METHOD(type, method)                                                    \
  GRADWIRE_RPC_REGISTER_(                                                                               \
      (::gradwire::rpc::registration_internal::overloads_need_GRADWIRE_RPC_IDEMPOTENT_AS<&type::method, \
                                                                                         type>(#method)))
// Registers a method, not overloaded, of a class: `type` and `method` are their names. The class may have
// inherited it from an accessible base class that occurs once.
#define GRADWIRE_RPC_METHOD(type, method) \
  GRADWIRE_RPC_REGISTER_((                \
      ::gradwire::rpc::registration_internal::overloads_need_GRADWIRE_RPC_AS<&type::method, type>(#method)))
// As GRADWIRE_RPC_AS, for a method that `type` has itself or has inherited. Its name on the wire is
// "type::name".
#define GRADWIRE_RPC_METHOD_AS(type, name, method) \
  GRADWIRE_RPC_REGISTER_((::gradwire::rpc::registration_internal::method_as_entry<method, type>(name)))
// Registers a class whose objects others may make: its name, and the parameter types of the constructor to be
// used.
#define GRADWIRE_RPC_CLASS(type, ...)                       \
  GRADWIRE_RPC_CONSTRUCTOR(type __VA_OPT__(, ) __VA_ARGS__) \
  GRADWIRE_RPC_REGISTER_(                                   \
      (::gradwire::rpc::registration_internal::class_entry<type __VA_OPT__(, ) __VA_ARGS__>(false)))
// As GRADWIRE_RPC_CLASS, and runs one method of an object at a time, in the order of arrival.
#define GRADWIRE_RPC_SERIAL_CLASS(type, ...)                \
  GRADWIRE_RPC_CONSTRUCTOR(type __VA_OPT__(, ) __VA_ARGS__) \
  GRADWIRE_RPC_REGISTER_(                                   \
      (::gradwire::rpc::registration_internal::class_entry<type __VA_OPT__(, ) __VA_ARGS__>(true)))

#define GRADWIRE_RPC_REGISTER_(entry)                                                                     \
  [[maybe_unused]] static const ::gradwire::rpc::Callee* const GRADWIRE_CONCAT_(gradwire_rpc_registered_, \
                                                                                __COUNTER__) = entry;

namespace gradwire::rpc {

template <class T>
class RRef;

// The registry's entry for a function, method or class of this program; nullptr when it was not registered.
template <auto F>
inline const Callee* callee_of_function = nullptr;
// As callee_of_function, for a method that the class T has inherited.
template <class T, auto F>
inline const Callee* callee_of_inherited = nullptr;
// As callee_of_function, for the constructor of a class.
template <class T>
inline const Callee* callee_of_class = nullptr;

namespace registration_internal {

// Whether F is a method of a base class of T, not of T.
template <auto F, class T>
inline constexpr bool kIsInherited =
    FunctionTraits<decltype(F)>::kIsMethod &&
    !std::is_same_v<typename FunctionTraits<decltype(F)>::Object, std::remove_cv_t<T>>;

// The entry of F; `T` is the class of the object for which a method is registered.
template <auto F, class T = typename FunctionTraits<decltype(F)>::Object>
const Callee*& entry_of() {
  if constexpr (kIsInherited<F, T>) {
    return callee_of_inherited<T, F>;
  } else {
    return callee_of_function<F>;
  }
}

template <auto F, class T = typename FunctionTraits<decltype(F)>::Object>
const Callee* function_entry(std::string name = cpp_function_name<F>(), bool idempotent = false) {
  using Traits = FunctionTraits<decltype(F)>;
  Callee callee;
  callee.name = std::move(name);
  callee.signature = Traits::signature();
  callee.serve = &serve_internal::serve<F, T>;
  callee.idempotent = idempotent;
  if constexpr (Traits::kIsMethod) {
    callee.kind = CalleeKind::kMethod;
    callee.object_type = value_type_name<T>();
  }
  entry_of<F, T>() = Registry::instance().add(std::move(callee));
  return entry_of<F, T>();
}

// The name of a method of T on the wire.
template <auto F, class T>
std::string method_name(const char* method) {
  if constexpr (kIsInherited<F, T>) {
    return absl::StrCat(cpp_type_name<T>(), "::", method);
  } else {
    return cpp_function_name<F>();
  }
}

// The entry of a method of T, which may be inherited, or of a static function of T.
template <auto F, class T>
const Callee* method_entry(std::string name, bool idempotent = false) {
  using Object = typename FunctionTraits<decltype(F)>::Object;
  if constexpr (std::is_void_v<Object>) {
    return function_entry<F>(std::move(name), idempotent);
  } else {
    static_assert(std::is_convertible_v<T*, Object*>,
                  "the method belongs to a class that is not an accessible base class of the registered "
                  "class, or that is its base class twice: define a method in the class itself");
    if constexpr (std::is_convertible_v<T*, Object*>) {
      return function_entry<F, T>(std::move(name), idempotent);
    } else {
      return nullptr;
    }
  }
}

template <class T>
inline constexpr bool kIsRRef = false;
template <class T>
inline constexpr bool kIsRRef<RRef<T>> = true;

template <auto F>
constexpr void require_result_that_is_not_a_reference() {
  static_assert(!kIsRRef<std::decay_t<typename FunctionTraits<decltype(F)>::Result>>,
                "calls that return an RRef are not retried: register the function with GRADWIRE_RPC");
}

template <auto F>
const Callee* idempotent_entry(std::string name = cpp_function_name<F>()) {
  require_result_that_is_not_a_reference<F>();
  return function_entry<F>(std::move(name), /*idempotent=*/true);
}

template <auto F, class T>
const Callee* method_as_entry(const char* name) {
  return method_entry<F, T>(absl::StrCat(cpp_type_name<T>(), "::", name));
}

// The macros call these functions. A static_assert cannot examine an overloaded name, so the names of the
// functions contain the advice: the compiler prints "no matching function for call to ...".
template <auto F>
const Callee* overloads_need_GRADWIRE_RPC_AS() {
  return function_entry<F>();
}
template <auto F>
const Callee* overloads_need_GRADWIRE_RPC_IDEMPOTENT_AS() {
  return idempotent_entry<F>();
}
template <auto F, class T>
const Callee* overloads_need_GRADWIRE_RPC_AS(const char* name) {
  return method_entry<F, T>(method_name<F, T>(name));
}
template <auto F, class T>
const Callee* overloads_need_GRADWIRE_RPC_IDEMPOTENT_AS(const char* name) {
  require_result_that_is_not_a_reference<F>();
  return method_entry<F, T>(method_name<F, T>(name), /*idempotent=*/true);
}

template <class T, class... A>
const Callee* class_entry(bool serial) {
  static_assert(
      ConstructorAgrees<T, A...>,
      "GRADWIRE_RPC_CONSTRUCTOR and the registration of the class must have the same parameter types");
  serial_class<T> = serial;
  Callee callee;
  callee.kind = CalleeKind::kConstructor;
  callee.name = cpp_type_name<T>();
  callee.signature = serve_internal::constructor_signature<A...>();
  callee.object_type = value_type_name<T>();
  callee.serve = &serve_internal::construct<T, A...>;
  callee_of_class<T> = Registry::instance().add(std::move(callee));
  return callee_of_class<T>;
}

}  // namespace registration_internal
}  // namespace gradwire::rpc
