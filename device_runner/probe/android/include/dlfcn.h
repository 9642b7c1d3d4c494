#ifndef PROBE_DLFCN_H
#define PROBE_DLFCN_H
#define RTLD_LOCAL 0
#define RTLD_NOW 2
void *dlopen(const char *path, int flags);
void *dlsym(void *library, const char *name);
char *dlerror(void);
#endif
