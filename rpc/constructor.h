#pragma once

// How a class is constructed by a call.
// For programs; our own files include this header.
#include "gradwire/rpc/registry/constructor.h"
