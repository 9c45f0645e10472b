#pragma once

#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gradwire::test_needs {

// Returns true if the environment variable GRADWIRE_TEST_MUST_HAVE, a list separated by commas, contains
// `resource`. Then this machine is expected to have the resource, and a test that does not find it fails.
bool must_have(absl::string_view resource);

// Unavailable if this process cannot create a pseudo terminal: in a container without /dev/pts. The resource
// is named pseudo_terminals.
absl::Status pseudo_terminals();

// Text for a test that cannot run because `resource` is missing.
std::string missing(absl::string_view resource, const absl::Status& why);

}  // namespace gradwire::test_needs

// Use in the body of a test or in SetUp(). If `status` (an absl::Status) is not OK, the macro returns from
// the test. The test then counts as skipped, or fails if must_have(resource). Tests of this project skip
// themselves only with this macro.
//
//   GRADWIRE_NEEDS("network_namespaces", Hosts::enter());
#define GRADWIRE_NEEDS(resource, status)                                       \
  if (const ::absl::Status gradwire_needs_ = (status); gradwire_needs_.ok()) { \
  } else if (::gradwire::test_needs::must_have(resource)) {                    \
    FAIL() << ::gradwire::test_needs::missing(resource, gradwire_needs_);      \
  } else                                                                       \
    GTEST_SKIP() << ::gradwire::test_needs::missing(resource, gradwire_needs_)
