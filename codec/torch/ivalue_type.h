#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradwire::rpc {

// The types of list and dictionary elements as text: Tensor, int, float, bool, str, complex, number, Device,
// None, Any, List[T], Optional[T], Dict[K,V], Tuple[T,...].

// InvalidArgument for any other type, naming it.
absl::StatusOr<std::string> type_to_text(const c10::Type& type);
// `text` is hostile: InvalidArgument unless it is what type_to_text gives, of bounded length and depth.
absl::StatusOr<c10::TypePtr> type_from_text(absl::string_view text);

// Whether `value` may be an element of a container of elements of `type`.
bool is_element(const c10::IValue& value, const c10::Type& type);

// The type that all of `values` have; Any when they differ or there are none.
c10::TypePtr common_type(c10::ArrayRef<c10::IValue> values);

}  // namespace gradwire::rpc
