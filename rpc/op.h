#pragma once

// Calls of operators of libtorch: Op.
// For programs; our own files include this header.
#include "gradwire/rpc/calls/op.h"
