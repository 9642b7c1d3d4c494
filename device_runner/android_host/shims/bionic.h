/* What the adapters share. Adapters are named bionic_NAME and stay hidden: the generated assembler exports them. */
#ifndef BIONIC_H
#define BIONIC_H

#include <stdio.h>

#define ADAPTER __attribute__((visibility("hidden")))

/* Android's long double, by bits and by register: binary128 on 64 bits, a double on 32. */
#if defined(__x86_64__)
typedef __float128 binary128;
#else
typedef long double binary128;
#endif

/* Names of the environment variables that tell an Android process what phone it is on. */
#define VARIABLE_SDK "ORT_MOBILE_ANDROID_SDK"
#define VARIABLE_PROPERTIES "ORT_MOBILE_ANDROID_PROPERTIES"
#define VARIABLE_LOG "ORT_MOBILE_ANDROID_LOG"
#define VARIABLE_CPU "ORT_MOBILE_ANDROID_CPU"

#endif
