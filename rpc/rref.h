#pragma once

// References to objects on other workers: RRef.
// For programs; our own files include this header.
#include "gradwire/rpc/calls/rref.h"
