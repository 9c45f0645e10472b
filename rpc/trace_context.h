#pragma once

// The trace to which a call belongs.
// For programs; our own files include this header.
#include "gradwire/rpc/trace/trace_context.h"
