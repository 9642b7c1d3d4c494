/* The one function of libm that differs: Android's long double on x86_64 is IEEE binary128. */
#include "bionic.h"

extern long long llroundf128(__float128 value);

ADAPTER long long bionic_llroundl(__float128 value) { return llroundf128(value); }
