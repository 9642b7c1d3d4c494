/* Several callers at once: threads that call one session or one each, and other models beside. */
#ifndef CALLERS_H
#define CALLERS_H

#include "session.h"

/* What several sessions of one process share, where the request asks for it. Before the first session is made. */
bool share_environment(struct probe *probe);

/* Make the callers that the request names, let all run for its time, and fill the answer; nothing for a single one. */
bool concurrent_runs(struct probe *probe);

#endif
