#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradwire::rpc {

// The text form of the element types of lists and dictionaries: Tensor, int, float, bool, str, complex,
// number, Device, None, Any, List[T], Optional[T], Dict[K,V], Tuple[T,...].

// Returns the text form of `type`. InvalidArgument, which names the type, for any other type.
absl::StatusOr<std::string> type_to_text(const c10::Type& type);
// Parses the text form. `text` is untrusted: InvalidArgument unless type_to_text() could have returned it.
// Its length and depth are limited.
absl::StatusOr<c10::TypePtr> type_from_text(absl::string_view text);

// Whether `value` may be an element of a container with the element type `type`.
bool is_element(const c10::IValue& value, const c10::Type& type);

// Returns the common type of all `values`; Any if they differ or if there are no values.
c10::TypePtr common_type(c10::ArrayRef<c10::IValue> values);

}  // namespace gradwire::rpc
