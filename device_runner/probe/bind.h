/* Inputs and outputs in the memory of the provider's device, by an IoBinding: what a session that captures its graph
 * needs, since it replays the capture on the very buffers of that inference. */
#ifndef BIND_H
#define BIND_H

#include "session.h"

/* After the first inference, which is not captured and gives the shapes: make tensors where the session wants them and
 * bind them, if the request asks for it. */
bool bind_tensors(struct probe *probe);

/* The first inference of a session that captures. */
OrtStatus *run_uncaptured(struct probe *probe);

/* One inference with what it costs an app: inputs into the device's memory, the run, outputs back. */
OrtStatus *run_bound(struct probe *probe);

/* Give back what was bound. */
void release_bound(struct probe *probe);

#endif
