#pragma once

// Programs that use process groups include this header. Each function acts on the world that
// init_process_group() made, unless a group is given. The method of ProcessGroup with the same name describes
// the function.

#include "gradwire/collectives/backend.h"
#include "gradwire/collectives/coalescing.h"
#include "gradwire/collectives/device_mesh.h"
#include "gradwire/collectives/functions.h"
#include "gradwire/collectives/objects.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/collectives/reduce_op.h"
#include "gradwire/collectives/subgroups.h"
#include "gradwire/collectives/work.h"
#include "gradwire/collectives/world.h"
