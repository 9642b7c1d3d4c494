/* The timed loop, and giving everything back. */
#ifndef MEASURE_H
#define MEASURE_H

#include "session.h"

/* One inference, into the outputs that are there already; NULL when it went well. */
OrtStatus *run_once(struct probe *probe);

/* Before each inference but the first: outputs that Run cannot fill again are dropped. */
void drop_others(struct probe *probe);

/* The first inference makes the outputs' memory; every later one gets it to fill where it can. */
bool first_run(struct probe *probe);

/* Warm up, then fill the answer with latencies until one of the request's bounds is reached. */
bool timed_runs(struct probe *probe);

/* Write the profile that the request asks for, and note its path. */
bool end_profile(struct probe *probe);

/* Give back names, inputs and outputs. */
void release_tensors(struct probe *probe);

/* In the order that ONNX Runtime wants; the library itself stays open, since its threads may still be ending. */
void release_all(struct probe *probe);

#endif
