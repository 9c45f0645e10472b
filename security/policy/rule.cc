#include "gradwire/security/policy/rule.h"

namespace gradwire::security {

absl::string_view word_for(CalleeClass kind) {
  switch (kind) {
    case CalleeClass::kFunction:
      return "function";
    case CalleeClass::kClass:
      return "class";
    case CalleeClass::kOperator:
      return "operator";
    case CalleeClass::kScript:
      return "script";
    case CalleeClass::kReference:
      return "reference";
    case CalleeClass::kService:
      return "service";
  }
  return "";
}

}  // namespace gradwire::security
