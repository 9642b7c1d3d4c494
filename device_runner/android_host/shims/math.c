/* The one function of libm that differs: Android's long double is IEEE binary128, which x86-64's is not here. */
#include "bionic.h"

#if defined(__x86_64__)
extern long long llroundf128(binary128 value);
#else
#include <math.h>
#define llroundf128 llroundl
#endif

ADAPTER long long bionic_llroundl(binary128 value) { return llroundf128(value); }
