#pragma once

// The macros that register functions and classes for calls.
// For programs; our own files include this header.
#include "gradwire/rpc/registry/registration.h"
