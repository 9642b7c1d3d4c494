/* A plugin execution provider: a library of its own that ONNX Runtime loads, and whose devices a session is given.
 *
 * Registering came with 1.22; what a provider took of a graph is told from 1.24 on. */
#ifndef PLUGIN_H
#define PLUGIN_H

#include <stdbool.h>

#include "session.h"

/* Register the request's plugin and give the session the first of its devices that is of the wanted type; false with
 * the failure noted. */
bool append_plugin(struct probe *probe);

/* Note what each provider took of the session's graph; false, with the failure noted, when the plugin took no node.
 * Nothing is recorded of an ORT format file: that is no failure. */
bool note_assignment(struct probe *probe);

/* After the session and its options were released. */
void release_plugin(struct probe *probe);

#endif
