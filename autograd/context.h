#pragma once

// The scope of one training step: Context. For programs; our own files include this header.
#include "gradwire/autograd/pass/context.h"
