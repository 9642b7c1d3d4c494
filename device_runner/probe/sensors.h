/* Clocks of the processors and temperatures, as /sys has them. */
#ifndef SENSORS_H
#define SENSORS_H

#include <stdint.h>

#include "answer.h"

/* What the files under a root such as "/sys" say now: the mean clock of all processors that tell theirs, and the highest
 * temperature among the zones of processors, or of all zones where none is named so. 0 for what nothing tells. */
void read_sensors(const char *root, struct sample *sample);

enum { PROCESSORS_MAX = 64 };

/* The processors that are faster than the slowest, counted from 0; none where all are alike or do not tell. */
int fast_cores(const char *root, int64_t numbers[PROCESSORS_MAX]);

#endif
