#pragma once

// The header of process groups that programs include. Each function acts on the world of init_process_group()
// unless a group is given. The method of ProcessGroup with the same name describes it.

#include "gradwire/collectives/backend.h"
#include "gradwire/collectives/functions.h"
#include "gradwire/collectives/objects.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/collectives/reduce_op.h"
#include "gradwire/collectives/work.h"
#include "gradwire/collectives/world.h"
