#pragma once

// Everything of the rpc layer but remote modules: agents, calls, RRefs, registration, tensors, operators,
// TorchScript.
#include "codec/codec_containers.h"    // IWYU pragma: export
#include "codec/torch/ivalue_codec.h"  // IWYU pragma: export
#include "codec/torch/tensor_codec.h"  // IWYU pragma: export
#include "rpc/agent.h"                 // IWYU pragma: export
#include "rpc/call.h"                  // IWYU pragma: export
#include "rpc/call_context.h"          // IWYU pragma: export
#include "rpc/empty_for.h"             // IWYU pragma: export
#include "rpc/init_rpc.h"              // IWYU pragma: export
#include "rpc/op_call.h"               // IWYU pragma: export
#include "rpc/registration.h"          // IWYU pragma: export
#include "rpc/rref.h"                  // IWYU pragma: export
#include "rpc/script.h"                // IWYU pragma: export
