#include "gradwire/rpc/limits/limit_refusals.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"

namespace gradwire::rpc {

absl::Status LimitRefusals::refuse(const Worker& from, const Worker& at, const CallerLimit& limit,
                                   absl::Time now) {
  count_.fetch_add(1, std::memory_order_relaxed);
  const std::string text = absl::StrCat(
      "worker \"", from.name, "\" has too many ", limit.what, " at worker \"", at.name, "\": it may have ",
      limit.value, " (RpcBackendOptions.caller_limits.", limit.option, " of worker \"", at.name, "\")");
  bool warn = false;
  {
    MutexLock lock(mutex_);
    warn = warnings_.allows(from.name, now);
  }
  if (warn) log(LogLevel::kWarning, text, "; further refusals of this worker are counted for a minute");
  return absl::ResourceExhaustedError(absl::StrCat(text, "; let some of them end first, or raise the limit"));
}

}  // namespace gradwire::rpc
