/* Inputs and outputs in the memory of the provider's device, by an IoBinding: where the request wants device tensors, and
 * where a session captures its graph, since it replays the capture on the very buffers of that inference. */
#ifndef BIND_H
#define BIND_H

#include "session.h"

/* After the first inference, which is not captured and gives the shapes: make tensors where the session wants them and
 * bind them, if the request asks for it. */
bool bind_tensors(struct probe *probe);

/* The first inference of a session that captures. */
OrtStatus *run_uncaptured(struct probe *probe);

/* One inference until the device has done it, with what it costs an app: inputs into the device's memory and outputs back,
 * but for those that stay there. */
OrtStatus *run_bound(struct probe *probe);

/* The output becomes the input of the next inference, on the device. */
OrtStatus *pass_on(struct probe *probe, size_t output, size_t input);

/* Outputs that stayed on the device, for the CPU to read. */
bool fetch_bound(struct probe *probe);

/* Give back what was bound. */
void release_bound(struct probe *probe);

#endif
