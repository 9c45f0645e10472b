#pragma once

// The interface of all stores: Store. For programs; our own files include this header.
#include "gradwire/store/interface/store.h"
