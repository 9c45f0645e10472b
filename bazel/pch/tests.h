#pragma once

// Headers that most tests include besides those of standard.h.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
