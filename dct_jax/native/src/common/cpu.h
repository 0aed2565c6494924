// What this processor can do. Loops are written twice: plainly, and for AVX2 behind DCT_AVX2 and has_avx2().
#pragma once

#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#define DCT_AVX2 __attribute__((target("avx2,f16c,bmi,popcnt")))
#endif

namespace dct {

// Whether functions that are marked DCT_AVX2 may be called. DCT_JAX_AVX2=0 in the environment says no, so that the
// plain loops can be tested on a processor that has it.
inline bool has_avx2() {
#if defined(__x86_64__)
  static const bool yes = [] {
    const char* wish = std::getenv("DCT_JAX_AVX2");
    bool wanted = !wish || std::strcmp(wish, "0") != 0;
    return wanted && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  }();
  return yes;
#else
  return false;
#endif
}

}  // namespace dct
