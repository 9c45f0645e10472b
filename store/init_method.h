#pragma once

// How processes find each other: rendezvous(). For programs; our own files include this header.
#include "gradwire/store/init/init_method.h"
