/*
 * The newest CUDA that this build of the library can be. The one that simulated
 * nodes use can be any: the node says which, or GPU_SIMULATOR_CUDA_VERSION.
 */
#include "driver.h"

const int driver_newest_version = DRIVER_CUDA_VERSION;
