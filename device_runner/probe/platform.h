/* Clock and memory of this process on Linux, Android and macOS. */
#ifndef PLATFORM_H
#define PLATFORM_H

#include <stdint.h>

/* Nanoseconds of a clock that only ever goes forward. */
uint64_t now_ns(void);

/* Memory that is in use now, and its largest amount so far; 0 where the system does not say. */
uint64_t resident_bytes(void);
uint64_t peak_bytes(void);

#endif
