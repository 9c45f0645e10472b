#pragma once

// One worker of a group: Agent.
// For programs; our own files include this header.
#include "gradwire/rpc/calls/agent.h"
