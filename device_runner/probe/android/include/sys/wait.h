#ifndef PROBE_SYS_WAIT_H
#define PROBE_SYS_WAIT_H
#include <sys/types.h>
#define WNOHANG 1
#define WTERMSIG(status) ((status) & 0x7f)
#define WIFSIGNALED(status) (WTERMSIG(status) && WTERMSIG(status) != 0x7f)
#define WEXITSTATUS(status) (((status) >> 8) & 0xff)
pid_t waitpid(pid_t process, int *status, int options);
#endif
