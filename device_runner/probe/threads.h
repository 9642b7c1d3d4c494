/* Threads of ONNX Runtime's pools, made here: on the cores and with the nice value that the request names. The thread
 * that calls Run is not one of them. */
#ifndef THREADS_H
#define THREADS_H

#include "session.h"

/* Find the cores, and try them and the nice value on a thread that does nothing else; false with the failure noted. */
bool plan_threads(struct probe *probe);

/* Have the pool of a session's options, or the environment's pool where that is given, make its threads here. */
bool make_threads(struct probe *probe, OrtThreadingOptions *shared);

#endif
