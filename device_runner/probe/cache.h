/* Files out of the page cache, so that loading them reads the disk as a first start does. */
#ifndef CACHE_H
#define CACHE_H

#include <stdbool.h>

#include "answer.h"
#include "session.h"

/* Ask the system to drop a file's clean pages, and count those that stay. What the file is mapped by, and file systems
 * that live in memory, keep them: the count says so. Needs no rights but to read the file. */
void drop_pages(const char *path, struct dropped_file *file);

/* The model and the library before either is opened, where the request wants a cold start. Never a failure. */
bool drop_cached(struct probe *probe);

#endif
