#ifndef PROBE_ERRNO_H
#define PROBE_ERRNO_H
int *__errno(void);
#define errno (*__errno())
#define EINTR 4
#define ENOSPC 28
#endif
