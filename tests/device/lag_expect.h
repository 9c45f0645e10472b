#pragma once

#include <gtest/gtest.h>

#include "gradwire/tests/device/lag_device.h"

namespace gradwire::lag {

// Fails the test if something of the accelerator is still in use.
inline void expect_nothing_left() { EXPECT_EQ(leftovers(), ""); }

}  // namespace gradwire::lag
