#pragma once

// The counts of an agent: AgentStatistics.
// For programs; our own files include this header.
#include "gradwire/rpc/core/agent_statistics.h"
