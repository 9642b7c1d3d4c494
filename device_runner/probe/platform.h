/* Clock and memory of this process on Linux, Android and macOS. */
#ifndef PLATFORM_H
#define PLATFORM_H

#include <stdint.h>

/* Nanoseconds of a clock that only ever goes forward. */
uint64_t now_ns(void);

/* Milliseconds since 1970 by the clock that people set. */
uint64_t wall_ms(void);

/* Memory that is in use now, and its largest amount so far; 0 where the system does not say. On Apple's systems it is the
 * footprint. */
uint64_t resident_bytes(void);
uint64_t peak_bytes(void);

/* What of that is no file's; 0 before Linux 4.5, all of a footprint. */
uint64_t private_bytes(void);

/* What this process can still have without others being killed for it; UINT64_MAX where the system does not say. */
uint64_t free_bytes(void);

#endif
