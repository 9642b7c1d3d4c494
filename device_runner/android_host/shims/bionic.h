/* What the adapters share. Adapters are named bionic_NAME and stay hidden: the generated assembler exports them. */
#ifndef BIONIC_H
#define BIONIC_H

#include <stdio.h>

#define ADAPTER __attribute__((visibility("hidden")))

/* Names of the environment variables that tell an Android process what phone it is on. */
#define VARIABLE_SDK "ORT_MOBILE_ANDROID_SDK"
#define VARIABLE_PROPERTIES "ORT_MOBILE_ANDROID_PROPERTIES"
#define VARIABLE_LOG "ORT_MOBILE_ANDROID_LOG"

#endif
