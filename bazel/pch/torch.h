#pragma once

// Headers that most files with tensors include besides those of standard.h.

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
