#pragma once

// The options of an agent: RpcBackendOptions.
// For programs; our own files include this header.
#include "gradwire/rpc/core/options.h"
