#pragma once

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "gradwire/base/testing/status_of.h"
#include "gradwire/collectives/world.h"

namespace gradwire::collectives::testing {

// The sum of every member's value.
inline double sum_over(const Group& group, int value) {
  at::Tensor tensor = at::full({}, static_cast<double>(value));
  group->all_reduce(tensor);
  return tensor.item<double>();
}

// Expects that the call throws InvalidArgument with `text` in its message.
inline void refuses(const std::function<void()>& call, const std::string& text) {
  const absl::Status status = status_of(call);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  EXPECT_THAT(status.ToString(), ::testing::HasSubstr(text));
}

}  // namespace gradwire::collectives::testing
