/* The order of a run's stages. */
#ifndef STAGES_H
#define STAGES_H

#include "answer.h"
#include "request.h"

/* Do the request; everything that is to be said is in the answer afterwards. */
void execute(const struct request *request, struct answer *answer);

#endif
