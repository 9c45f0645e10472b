#pragma once

// Where a call goes, and how: Destination.
// For programs; our own files include this header.
#include "gradwire/rpc/core/destination.h"
