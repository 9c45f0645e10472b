#include "gradwire/transport/tcp/socket/address_search.h"

#include "absl/strings/str_cat.h"
#include "gradwire/transport/refused.h"

namespace gradwire::transport {

void AddressSearch::start_in_loop(NameLookups& lookups, absl::Time deadline, Done done) {
  done_ = std::move(done);
  for (const HostAddress& each : addresses_) {
    if (!each.numeric.has_value()) missing_.insert(each.host);
  }
  if (missing_.empty()) {
    resolve_in_loop();
    return;
  }
  timer_ = loop_->schedule_in_loop(deadline, [self = shared_from_this()] {
    self->finish_in_loop(unresolved_error(
        absl::StrCat("cannot look up the host \"", *self->missing_.begin(), "\": no answer in time")));
  });
  for (const std::string& host : missing_) lookups.find(host, weak_from_this());
}

void AddressSearch::found(const std::string& host, const NameLookups::Result& result) {
  loop_->post([self = shared_from_this(), host, result] { self->found_in_loop(host, result); });
}

void AddressSearch::found_in_loop(const std::string& host, NameLookups::Result result) {
  missing_.erase(host);
  results_.emplace(host, std::move(result));
  if (missing_.empty()) resolve_in_loop();
}

void AddressSearch::resolve_in_loop() {
  absl::StatusOr<std::vector<SocketAddress>> found =
      resolve(addresses_, [this](const std::string& host) { return results_.at(host); });
  // Another code says more than that the name was not found.
  if (absl::IsUnavailable(found.status())) found = unresolved_error(found.status().message());
  finish_in_loop(std::move(found));
}

// `done_` is taken out first: it is called at most once, and it may destroy the owner of this object.
void AddressSearch::finish_in_loop(absl::StatusOr<std::vector<SocketAddress>> result) {
  loop_->cancel_in_loop(std::exchange(timer_, 0));
  if (Done done = std::exchange(done_, nullptr)) done(std::move(result));
}

void AddressSearch::cancel_in_loop() {
  done_ = nullptr;
  loop_->cancel_in_loop(std::exchange(timer_, 0));
}

}  // namespace gradwire::transport
