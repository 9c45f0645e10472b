#pragma once

// The call that the current code serves: its deadline and cancellation.
// For programs; our own files include this header.
#include "gradwire/rpc/core/call_context.h"
