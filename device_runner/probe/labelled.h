/* The labelled set: every sample through the model's only input, the first output of each kept behind the last. */
#ifndef LABELLED_H
#define LABELLED_H

#include "session.h"

/* Run the set that the request names, if it names one, and note its outputs as one more. */
bool run_labelled(struct probe *probe);

#endif
