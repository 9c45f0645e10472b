#pragma once

// Everything of the rpc layer but remote modules: agents, calls, RRefs, registration, tensors, operators,
// TorchScript.
#include "gradwire/codec/codec_containers.h"     // IWYU pragma: export
#include "gradwire/codec/torch/ivalue_codec.h"   // IWYU pragma: export
#include "gradwire/codec/torch/tensor_codec.h"   // IWYU pragma: export
#include "gradwire/rpc/calls/agent.h"            // IWYU pragma: export
#include "gradwire/rpc/calls/call.h"             // IWYU pragma: export
#include "gradwire/rpc/calls/op.h"               // IWYU pragma: export
#include "gradwire/rpc/calls/rref.h"             // IWYU pragma: export
#include "gradwire/rpc/core/agent_statistics.h"  // IWYU pragma: export
#include "gradwire/rpc/core/call_context.h"      // IWYU pragma: export
#include "gradwire/rpc/empty_for.h"              // IWYU pragma: export
#include "gradwire/rpc/init_rpc.h"               // IWYU pragma: export
#include "gradwire/rpc/registry/registration.h"  // IWYU pragma: export
#include "gradwire/rpc/script.h"                 // IWYU pragma: export
