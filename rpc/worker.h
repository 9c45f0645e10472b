#pragma once

// The name and the id of a worker: WorkerInfo.
// For programs; our own files include this header.
#include "gradwire/rpc/core/worker.h"
