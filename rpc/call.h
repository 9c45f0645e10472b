#pragma once

// Calls of functions, methods and constructors on other workers.
// For programs; our own files include this header.
#include "gradwire/rpc/calls/call.h"
