#include "gradwire/rpc/transfers/transfer_settings.h"

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace gradwire::rpc {

absl::StatusOr<uint64_t> transfers_over(uint64_t option, const char* variable) {
  if (option != 0 || variable == nullptr || *variable == '\0') return option;
  uint64_t bytes = 0;
  if (absl::SimpleAtoi(variable, &bytes)) return bytes;
  return absl::InvalidArgumentError(absl::StrCat("GRADWIRE_LOG_TRANSFERS_OVER: got \"",
                                                 absl::CHexEscape(variable),
                                                 "\", expected a number of bytes, for example 1073741824"));
}

}  // namespace gradwire::rpc
