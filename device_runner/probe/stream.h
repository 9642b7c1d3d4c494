/* A model with state, run as a stream: what one step gives as state is what the next one takes. */
#ifndef STREAM_H
#define STREAM_H

#include "session.h"

/* Run the request's steps in place of the timed loop, each with its part of the sequences, and fill the latencies.
 * States begin as their inputs are. No state is copied: its two buffers change places, as an app with IO binding does. */
bool stream_runs(struct probe *probe);

#endif
