#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gradwire/gateway/options/options.h"

namespace gradwire::gateway {

// Whether both texts are equal. The time depends only on the length of `given`, which says nothing about
// `secret`.
bool equal_in_constant_time(absl::string_view secret, absl::string_view given);

// Decides who may use the gateway, and which callees. Immutable and thread-safe.
class Access {
 public:
  explicit Access(const Options& options);

  // Checks the metadata "authorization" of an RPC. Unauthenticated if the token is missing or wrong.
  absl::Status check_token(absl::string_view authorization) const;
  // PermissionDenied for a function, class or method that is not on the allow list.
  absl::Status check_callee(absl::string_view name) const;
  // The same for an operator, "aten::add" or "aten::add.Tensor".
  absl::Status check_operator(absl::string_view name) const;
  bool any_operators() const { return !operators_.empty(); }

 private:
  const std::string token_;
  const std::vector<std::string> callees_;
  const std::vector<std::string> operators_;
};

// Returns InvalidArgument for options that contradict each other, and FailedPrecondition for an address that
// other hosts can reach, without TLS, without a token, and without `insecure`.
absl::Status check_options(const Options& options);

}  // namespace gradwire::gateway
