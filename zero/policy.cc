#include "zero/policy.h"
