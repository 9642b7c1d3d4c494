/* The mode `inspect`: models of one operation each, as the request describes them, and which device of NNAPI says that
 * it supports them. The answers of a device are one letter for each question, in their order. */
#ifndef INSPECT_H
#define INSPECT_H

#include "nnapi.h"
#include "request.h"

/* Ask every device each question of the request. */
void ask_questions(const struct nnapi *nnapi, const struct request *request, struct nnapi_answer *answer);

#endif
