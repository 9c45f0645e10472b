#pragma once

// The results of a call to a mesh: MeshResult.
// For programs; our own files include this header.
#include "gradwire/rpc/mesh/mesh_result.h"
