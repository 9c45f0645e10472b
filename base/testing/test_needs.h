#pragma once

#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gradwire::test_needs {

// True if the environment variable GRADWIRE_TEST_MUST_HAVE, a list separated by commas, contains `resource`:
// then this machine is meant to have the resource, and a test that misses it fails.
bool must_have(absl::string_view resource);

// Text for a test that cannot run because `resource` is missing.
std::string missing(absl::string_view resource, const absl::Status& why);

}  // namespace gradwire::test_needs

// In the body of a test or in SetUp(): leaves it if `status` (an absl::Status) is not OK. The test is counted
// as skipped, or fails if must_have(resource). The only way in which a test of this project skips itself.
//
//   GRADWIRE_NEEDS("network_namespaces", Hosts::enter());
#define GRADWIRE_NEEDS(resource, status)                                       \
  if (const ::absl::Status gradwire_needs_ = (status); gradwire_needs_.ok()) { \
  } else if (::gradwire::test_needs::must_have(resource)) {                    \
    FAIL() << ::gradwire::test_needs::missing(resource, gradwire_needs_);      \
  } else                                                                       \
    GTEST_SKIP() << ::gradwire::test_needs::missing(resource, gradwire_needs_)
