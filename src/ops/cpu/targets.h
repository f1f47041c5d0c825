// The instruction sets the vector code is compiled for; one is chosen at run time. Included before any Highway header, in every file alike.
// AVX2 and AVX-512 are what the machines that train have; Highway adds its portable code for every other x86-64. The levels between would
// only cost time to compile.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
