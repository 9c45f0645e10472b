#pragma once

// Everything of the rpc layer but remote modules: agents, calls, RRefs, registration, tensors, operators,
// TorchScript.
#include "gradwire/codec/codec_containers.h"    // IWYU pragma: export
#include "gradwire/codec/torch/ivalue_codec.h"  // IWYU pragma: export
#include "gradwire/codec/torch/tensor_codec.h"  // IWYU pragma: export
#include "gradwire/rpc/agent.h"                 // IWYU pragma: export
#include "gradwire/rpc/agent_statistics.h"      // IWYU pragma: export
#include "gradwire/rpc/call.h"                  // IWYU pragma: export
#include "gradwire/rpc/call_context.h"          // IWYU pragma: export
#include "gradwire/rpc/empty_for.h"             // IWYU pragma: export
#include "gradwire/rpc/init_rpc.h"              // IWYU pragma: export
#include "gradwire/rpc/op.h"                    // IWYU pragma: export
#include "gradwire/rpc/registration.h"          // IWYU pragma: export
#include "gradwire/rpc/rref.h"                  // IWYU pragma: export
#include "gradwire/rpc/script.h"                // IWYU pragma: export
