/* A module with the kernel whose time is its parameter (src/simulator/cuda/module.h). */
#ifndef PROGRAMS_SPIN_H
#define PROGRAMS_SPIN_H

static const char spin_image[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
				 ".visible .entry spin(.param .u64 ns) { ret; }\n";

#endif
