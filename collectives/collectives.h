#pragma once

// What programs include. Each function acts on the world of init_process_group() unless a group is given, and is
// described at the method of ProcessGroup of the same name.

#include "collectives/backend.h"
#include "collectives/functions.h"
#include "collectives/objects.h"
#include "collectives/process_group.h"
#include "collectives/reduce_op.h"
#include "collectives/work.h"
#include "collectives/world.h"
