#include "gradwire/transport/ucx/ucx_arrivals.h"

#include "gradwire/base/clock.h"
#include "gradwire/base/log/log.h"
#include "gradwire/transport/ucx/ucx_connection.h"

namespace gradwire::transport {

Admission::Id UcxArrivals::arrive_in_loop(const std::string& host) {
  const absl::Time now = Clock::system().now();
  const Admission::Outcome outcome = admission_.arrive(host, now);
  if (outcome.replaced != 0) {
    const auto replaced = waiting_.find(outcome.replaced);
    if (replaced != waiting_.end()) replaced->second->give_up_in_loop();
  }
  if ((outcome.admitted == 0 || outcome.replaced != 0) && warnings_.allows("", now)) {
    log(LogLevel::kWarning,
        "too many processes that connect over UCX have not proved who they are: ", admission_.refused(),
        " were rejected at once and ", admission_.replaced(), " after a while, the last one from ", host,
        "; see Limits::max_arrivals and max_arrivals_per_address");
  }
  return outcome.admitted;
}

void UcxArrivals::connect_in_loop(Admission::Id place) {
  waiting_.erase(place);
  admission_.connect(place);
}

void UcxArrivals::leave_in_loop(Admission::Id place) {
  waiting_.erase(place);
  admission_.leave(place);
}

void UcxArrivals::warn_in_loop(const std::string& host, absl::string_view peer, absl::string_view reason) {
  if (!warnings_.allows(host, Clock::system().now())) return;
  log(LogLevel::kWarning, "refused a connection over UCX from ", peer, ": ", reason,
      " (more refusals of this host in the next minute are not logged)");
}

}  // namespace gradwire::transport
